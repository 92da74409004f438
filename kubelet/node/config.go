package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/eviction"
)

// Defaults of Config.
const (
	DefaultMaxPods        = 110
	DefaultLeaseDuration  = 40 * time.Second
	DefaultReportInterval = 5 * time.Minute
	DefaultMaxImages      = 50
	DefaultUpdateInterval = 10 * time.Second
)

// Config are the values of a Manager. It has many fields because the kubelet has a setting for each.
type Config struct {
	Name     string   // name of the Node object
	Hostname string   // value of the label and the address; Name if empty
	IPs      []net.IP // InternalIP addresses, the primary one first
	Port     int32    // port of the node's HTTPS server
	Version  string   // reported as kubeletVersion
	Labels   map[string]string
	Taints   []corev1.Taint // taints of a Node that is created here
	// DeclaredFeatures are the names of the features that the status declares, sorted.
	DeclaredFeatures []string
	// ProviderID is set in a Node that has none.
	ProviderID string
	// NoRegister leaves the creation of the Node to others.
	NoRegister bool
	// Cloud describes the controller manager of the node's cloud.
	Cloud Cloud
	// MaxPods is the capacity for Pods; DefaultMaxPods if nil.
	MaxPods *int64
	// KubeReserved, SystemReserved and the hard ones of the Thresholds are subtracted from capacity to compute allocatable.
	KubeReserved, SystemReserved corev1.ResourceList
	Thresholds                   []eviction.Threshold
	// UpdateInterval is how often the size of the disk is measured: the kernel has no event for it. DefaultUpdateInterval if
	// zero.
	UpdateInterval time.Duration
	// LeaseDuration is the duration of the lease, which is renewed every quarter of it. DefaultLeaseDuration if zero.
	LeaseDuration time.Duration
	// ReportInterval is the longest time between two writes of the status. DefaultReportInterval if zero.
	ReportInterval time.Duration
	// MaxImages is the number of images that the status lists, the largest first; DefaultMaxImages if nil, all if negative.
	MaxImages *int
	// NoAttachDetach omits the annotation that delegates attaching volumes to the controller.
	NoAttachDetach bool
}

// Cloud describes a Node whose cloud has a controller manager of its own.
type Cloud struct {
	// External says that it has one: it removes the taint of a Node that is created here, and addresses of the Node that exist
	// are its own.
	External bool
	// NodeIPs are the addresses that the user has chosen, for an annotation that the controller manager reads.
	NodeIPs []net.IP
	// ChosenIPs says that the Node has Config.IPs until the controller manager sets its addresses; otherwise it has none until then.
	ChosenIPs bool
}

// complete checks the configuration and sets its defaults.
func (c *Config) complete() error {
	switch {
	case c.Name == "":
		return errors.New("node: Config.Name is required")
	case strings.ToLower(c.Name) != c.Name:
		return fmt.Errorf("node: Config.Name %q: node names are lower case", c.Name)
	case len(c.IPs) == 0:
		return errors.New("node: Config.IPs is required: a node needs an address")
	case c.MaxPods != nil && *c.MaxPods < 0:
		return fmt.Errorf("node: Config.MaxPods %d is negative", *c.MaxPods)
	case !slices.IsSorted(c.DeclaredFeatures):
		return fmt.Errorf("node: Config.DeclaredFeatures %q: the API server wants them sorted", c.DeclaredFeatures)
	case c.LeaseDuration < 0 || c.ReportInterval < 0 || c.UpdateInterval < 0:
		return errors.New("node: Config.LeaseDuration, ReportInterval and UpdateInterval must not be negative")
	}
	c.Hostname = cmp.Or(c.Hostname, c.Name)
	if c.MaxPods == nil {
		c.MaxPods = ptr.To[int64](DefaultMaxPods)
	}
	c.LeaseDuration = cmp.Or(c.LeaseDuration, DefaultLeaseDuration)
	c.ReportInterval = cmp.Or(c.ReportInterval, DefaultReportInterval)
	c.UpdateInterval = cmp.Or(c.UpdateInterval, DefaultUpdateInterval)
	if c.MaxImages == nil {
		c.MaxImages = ptr.To(DefaultMaxImages)
	}
	return nil
}

// Runtime is the part of the CRI that the Manager uses.
type Runtime interface {
	Version(ctx context.Context, req *runtimeapi.VersionRequest, opts ...grpc.CallOption) (
		*runtimeapi.VersionResponse, error)
	Status(ctx context.Context, req *runtimeapi.StatusRequest, opts ...grpc.CallOption) (
		*runtimeapi.StatusResponse, error)
	ListImages(ctx context.Context, req *runtimeapi.ListImagesRequest, opts ...grpc.CallOption) (
		*runtimeapi.ListImagesResponse, error)
}

// Deps are what a Manager works with. Client, Runtime and Machine are required.
type Deps struct {
	Client kubernetes.Interface
	// LeaseClient renews the lease. It should have its own connection, so that a busy Client cannot make the node look
	// dead; nil means Client.
	LeaseClient kubernetes.Interface
	Runtime     Runtime
	Machine     Machine
	// Pressure returns the node's pressure conditions, of which Manager.PressureChanged reports changes; nil means that it has
	// none.
	Pressure func() []eviction.Condition
	// Devices returns how many devices of device plugins the node has, by resource, and how many of them containers may get, of
	// which Manager.DevicesChanged reports changes; nil means that it has none.
	Devices func() (capacity, allocatable corev1.ResourceList)
	// First reports whether this is the first kubelet of the machine. An existing Node's extended resources are those of another machine of its
	// name then, and are set to zero. Nil means that it is not.
	First func() bool
	// OnNode is called with every new state of the Node object from the API server. It must not block and must not
	// modify the object.
	OnNode func(*corev1.Node)
	// OnRuntime is called with every status of the runtime. It must not block.
	OnRuntime func(*runtimeapi.StatusResponse)
	// OnImages is called with every list of the runtime's images and the time when it was requested. It must not modify
	// the images.
	OnImages func(images []*runtimeapi.Image, listedAt time.Time)
	// Instance, if set, returns what a cloud provider knows of the machine, whose Node is known so far as a name and a
	// provider ID. It is called before the Node is registered, until it succeeds, and later for changed addresses.
	Instance func(ctx context.Context, known *corev1.Node) (Instance, error)
	// OnStartup, if set, is called when a Node has been created, and once more, with the time when it was ready, when its status says
	// so for the first time. It is not called for a Node that existed. It must not block.
	OnStartup func(Startup)
	Recorder  record.EventRecorder
	Clock     clock.Clock
	Logger    *slog.Logger
}

// complete checks the dependencies and sets the defaults of those that are optional.
func (d *Deps) complete() error {
	switch {
	case d.Client == nil:
		return errors.New("node: Deps.Client is required")
	case d.Runtime == nil:
		return errors.New("node: Deps.Runtime is required")
	case d.Machine == nil:
		return errors.New("node: Deps.Machine is required")
	}
	if d.LeaseClient == nil {
		d.LeaseClient = d.Client
	}
	if d.Devices == nil {
		d.Devices = func() (capacity, allocatable corev1.ResourceList) { return nil, nil }
	}
	if d.Pressure == nil {
		d.Pressure = func() []eviction.Condition { return nil }
	}
	if d.First == nil {
		d.First = func() bool { return false }
	}
	if d.OnNode == nil {
		d.OnNode = func(*corev1.Node) {}
	}
	if d.OnRuntime == nil {
		d.OnRuntime = func(*runtimeapi.StatusResponse) {}
	}
	if d.OnImages == nil {
		d.OnImages = func([]*runtimeapi.Image, time.Time) {}
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}
