package csidriver

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	// Name is the driver's name if Config.Name is empty.
	Name = "csi.berth.dev"
	// TopologyKey is the topology segment, and so the node label, whose value is the node's id.
	TopologyKey = "topology.csi.berth.dev/node"
	// ContextDevice is the key of the publish context that holds the path of the loop device.
	ContextDevice = "device"
	// ContextReadonly is the key of the publish context that says "true" if the device is read-only.
	ContextReadonly = "readonly"
	// DefaultFSType is the filesystem of a volume whose capability names none.
	DefaultFSType = "ext4"
	// DefaultSize is the size in bytes of a volume whose request names none.
	DefaultSize = 1 << 30
	// MinSize is the smallest volume in bytes; less is rounded up to it.
	MinSize = 1 << 20
	// MinSizeXFS is MinSize for volumes that are to have xfs, which needs that much.
	MinSizeXFS = 300 << 20
)

// maxSocket is the longest path that fits a unix socket's address.
const maxSocket = 107

// driverName is what CSI allows as a name: a domain name of at most 63 characters.
var driverName = regexp.MustCompile(`^[a-zA-Z]([a-zA-Z0-9.-]{0,61}[a-zA-Z])?$`)

// Deps are what the driver works with.
type Deps struct {
	// Logger; nil discards.
	Logger *slog.Logger
}

// Config says which node the driver is for and where its things are.
type Config struct {
	// Endpoint is the unix socket to serve on, as an absolute path, unix:/path or unix:///path. Its directory is made if
	// it is missing; what is left of an earlier socket is removed.
	Endpoint string
	// NodeID is the id of this node in CSI and the value of its topology segment; usually the Node's name.
	NodeID string
	// Root is the absolute path of the directory that holds the images, made, for root only, if it is missing. It
	// must belong to one running driver alone, besides those that are NodeOnly.
	Root string
	// Shared says that other nodes reach the Root too, as a directory of the network or because they share the machine.
	// Then volumes belong to no node: each may be published to any, to one at a time, and the driver on that node
	// attaches it when it stages it. One driver has the controller service, the others are NodeOnly.
	Shared bool
	// NodeOnly leaves the controller service, and the care for the Root, to another driver. It needs Shared.
	NodeOnly bool
	// Name is the driver's name; empty means the constant Name.
	Name string
	// Version is what GetPluginInfo answers; empty means "dev".
	Version string
	// MaxVolumes is how many volumes the node may have attached; 0 means that the driver names no limit.
	MaxVolumes int64
	// Thin is the default of the parameter overcommit: its volumes may have more than the disk. Writes to them fail when it is
	// full.
	Thin bool
	// KeepFree is how many bytes of the Root's file system are for its other users, and for no volume. It bounds only what new
	// volumes get: the driver cannot keep others from using more.
	KeepFree int64
}

func (c *Config) complete() error {
	c.Endpoint = strings.TrimPrefix(strings.TrimPrefix(c.Endpoint, "unix:"), "//")
	if c.Name == "" {
		c.Name = Name
	}
	if c.Version == "" {
		c.Version = "dev"
	}
	switch {
	case !filepath.IsAbs(c.Endpoint):
		return fmt.Errorf("config field Endpoint: %q is not the absolute path of a unix socket", c.Endpoint)
	case len(c.Endpoint) > maxSocket:
		return fmt.Errorf("config field Endpoint: %q is longer than %d bytes", c.Endpoint, maxSocket)
	case !filepath.IsAbs(c.Root) || filepath.Clean(c.Root) == "/":
		return fmt.Errorf("config field Root: %q is not an absolute path below /", c.Root)
	case c.NodeOnly && !c.Shared:
		return errors.New("config field NodeOnly: needs Shared, for what has the Root otherwise?")
	case c.NodeID == "":
		return errors.New("config field NodeID is empty")
	case !driverName.MatchString(c.Name):
		return fmt.Errorf("config field Name: %q is not a domain name of at most 63 characters", c.Name)
	case c.KeepFree < 0:
		return fmt.Errorf("config field KeepFree: %d is negative", c.KeepFree)
	case c.MaxVolumes < 0:
		return fmt.Errorf("config field MaxVolumes: %d is negative", c.MaxVolumes)
	}
	c.Root = filepath.Clean(c.Root)
	return nil
}
