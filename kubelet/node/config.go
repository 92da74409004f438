package node

import (
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
)

// Defaults of Config.
const (
	DefaultMaxPods        = 110
	DefaultLeaseDuration  = 40 * time.Second
	DefaultReportInterval = 5 * time.Minute
	DefaultMaxImages      = 50
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
	// ProviderID is set in a Node that is created here.
	ProviderID string
	// MaxPods is the capacity for Pods; DefaultMaxPods if zero.
	MaxPods int64
	// KubeReserved, SystemReserved and the Thresholds are subtracted from capacity to compute allocatable.
	KubeReserved, SystemReserved corev1.ResourceList
	// Thresholds define when the node is under pressure; DefaultThresholds if nil.
	Thresholds *Thresholds
	// LeaseDuration is the duration of the lease, which is renewed every quarter of it. DefaultLeaseDuration if zero.
	LeaseDuration time.Duration
	// ReportInterval is the longest time between two writes of the status. DefaultReportInterval if zero.
	ReportInterval time.Duration
	// MaxImages is the number of images that the status lists, the largest first; DefaultMaxImages if zero, all if
	// negative.
	MaxImages int
	// NoAttachDetach omits the annotation that delegates attaching volumes to the controller.
	NoAttachDetach bool
}

// Thresholds are the amounts below which a resource is under pressure. Fractions are of the capacity, 0 to 1.
type Thresholds struct {
	MemoryAvailable  int64   // bytes
	DiskAvailable    float64 // fraction of the file system's bytes
	DiskAvailableCap int64   // bytes; an upper bound of the amount that DiskAvailable yields; no bound if zero
	InodesFree       float64 // fraction of its inodes
	PIDsAvailable    float64 // fraction of the process IDs
}

// diskFloor returns the number of bytes of a file system that should be free.
func (t *Thresholds) diskFloor(capacity int64) int64 {
	floor := int64(t.DiskAvailable * float64(capacity))
	if t.DiskAvailableCap > 0 {
		floor = min(floor, t.DiskAvailableCap)
	}
	return floor
}

// diskPressureMessage describes the condition of disk pressure.
func (t *Thresholds) diskPressureMessage(capacity int64) string {
	return fmt.Sprintf("less than %d of %d MiB or less than %g%% of the inodes are free, or were within the last %g minutes",
		t.diskFloor(capacity)>>20, capacity>>20, 100*t.InodesFree, pressureHold.Minutes())
}

// DefaultThresholds returns upstream's hard eviction thresholds, which include none for process IDs.
func DefaultThresholds() *Thresholds {
	return &Thresholds{MemoryAvailable: 100 << 20, DiskAvailable: 0.10, InodesFree: 0.05}
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
	case c.MaxPods < 0:
		return fmt.Errorf("node: Config.MaxPods %d is negative", c.MaxPods)
	case !slices.IsSorted(c.DeclaredFeatures):
		return fmt.Errorf("node: Config.DeclaredFeatures %q: the API server wants them sorted", c.DeclaredFeatures)
	case c.LeaseDuration < 0 || c.ReportInterval < 0:
		return errors.New("node: Config.LeaseDuration and Config.ReportEvery must not be negative")
	}
	if c.Hostname == "" {
		c.Hostname = c.Name
	}
	if c.MaxPods == 0 {
		c.MaxPods = DefaultMaxPods
	}
	if c.LeaseDuration == 0 {
		c.LeaseDuration = DefaultLeaseDuration
	}
	if c.ReportInterval == 0 {
		c.ReportInterval = DefaultReportInterval
	}
	if c.MaxImages == 0 {
		c.MaxImages = DefaultMaxImages
	}
	if c.Thresholds == nil {
		c.Thresholds = DefaultThresholds()
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
	// OnNode is called with every new state of the Node object from the API server. It must not block and must not
	// modify the object.
	OnNode func(*corev1.Node)
	// OnRuntime is called with every status of the runtime. It must not block.
	OnRuntime func(*runtimeapi.StatusResponse)
	// OnImages is called with every list of the runtime's images and the time when it was requested. It must not modify
	// the images.
	OnImages func(images []*runtimeapi.Image, listedAt time.Time)
	Recorder record.EventRecorder
	Clock    clock.Clock
	Logger   *slog.Logger
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
