package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/provision"
)

// DefaultTimeout is how long one call may take if Config.Timeout is zero. A longer one is not lost: it is repeated.
const DefaultTimeout = time.Minute

// Deps are what the provisioner works with.
type Deps struct {
	// Client reads Secrets, CSINodes, Nodes, the claims and volumes that are cloned, VolumeAttributesClasses and
	// VolumeAttachments. It writes nothing. Required.
	Client kubernetes.Interface
	// Dynamic reads VolumeSnapshots and their contents. Nil: claims that are to be made of snapshots are refused.
	Dynamic dynamic.Interface
	// Logger; nil discards. No request and no secret is ever logged.
	Logger *slog.Logger
}

// Config says which driver it is.
type Config struct {
	// Name is the driver's name, which StorageClasses name as their provisioner. It is compared with what the
	// driver says of itself. Required.
	Name string
	// Socket is the driver's unix socket, as an absolute path, unix:/path or unix:///path. It need not be there yet.
	// Required.
	Socket string
	// Timeout is how long one call to the driver may take, the wait for a connection included; zero means
	// DefaultTimeout.
	Timeout time.Duration
	// ExtraCreateMetadata has the claim's name and namespace and the volume's name passed among the parameters.
	ExtraCreateMetadata bool
	// DefaultFSType is passed for filesystem volumes whose class names none; "" leaves it to the driver.
	DefaultFSType string
}

func (c *Config) complete() error {
	c.Socket = strings.TrimPrefix(strings.TrimPrefix(c.Socket, "unix:"), "//")
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	switch {
	case c.Name == "":
		return errors.New("config field Name is empty")
	case !filepath.IsAbs(c.Socket):
		return fmt.Errorf("config field Socket: %q is not the absolute path of a unix socket", c.Socket)
	case c.Timeout < 0:
		return fmt.Errorf("config field Timeout: %v is negative", c.Timeout)
	}
	c.Socket = filepath.Clean(c.Socket) // as the events on it name it
	return nil
}

// Provisioner makes and removes volumes through one driver. It is safe for concurrent use.
type Provisioner struct {
	client  kubernetes.Interface
	dynamic dynamic.Interface
	config  Config
	logger  *slog.Logger
	driver  *driver
	// attached is what is heard of the driver's VolumeAttachments, attachmentLister asks for them.
	attached         *attachments
	attachmentLister *attachmentLister
	// open has, by volume, what was asked of the driver and not answered for good. It is asked again in the same
	// words: others might make the driver say that there is something else of that name.
	mu      sync.Mutex
	pending map[string]*plan
}

var (
	_ provision.Provisioner        = (*Provisioner)(nil)
	_ provision.ProvisionerContext = (*Provisioner)(nil)
	_ provision.DeleterContext     = (*Provisioner)(nil)
	_ provision.DeletionNotifier   = (*Provisioner)(nil)
	_ provision.BlockProvisioner   = (*Provisioner)(nil)
)

// New makes a Provisioner. It connects to nothing before Start or the first call.
func New(deps Deps, config Config) (*Provisioner, error) {
	err := config.complete()
	if err == nil && deps.Client == nil {
		err = errors.New("dependency Client is missing")
	}
	if err != nil {
		return nil, fmt.Errorf("make csi provisioner: %w", err)
	}
	logger := deps.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	logger = logger.With("driver", config.Name)
	return &Provisioner{
		client: deps.Client, dynamic: deps.Dynamic, config: config, logger: logger,
		driver: newDriver(config, logger), attached: newAttachments(), attachmentLister: newAttachmentLister(deps.Client, config.Name),
		pending: map[string]*plan{},
	}, nil
}

// Start keeps the connection to the driver until ctx ends, and closes it then; calls fail after that. It returns an
// error if the socket's driver has another name than Config.Name. Calls before Start work as well.
func (p *Provisioner) Start(ctx context.Context) error { return p.driver.start(ctx) }

// SupportsBlock implements provision.BlockProvisioner. Whether the driver can is found out by asking it for one.
func (p *Provisioner) SupportsBlock() bool { return true }

// Provision implements provision.Provisioner, for callers without a context of their own: it takes that of Start, and
// fails before it. The controller calls ProvisionContext instead.
func (p *Provisioner) Provision(options provision.VolumeOptions) (*corev1.PersistentVolume, error) {
	ctx, err := p.driver.context()
	if err != nil {
		return nil, err
	}
	volume, _, err := p.ProvisionContext(ctx, options)
	return volume, err
}

// Delete implements provision.Provisioner as Provision does. The controller calls DeleteContext instead.
func (p *Provisioner) Delete(volume *corev1.PersistentVolume) error {
	ctx, err := p.driver.context()
	if err != nil {
		return err
	}
	return p.DeleteContext(ctx, volume)
}
