package podworker

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/pleg"
	"github.com/berth-dev/berth/kubelet/prober"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/timeline"
)

// Runtime is what is done to the container runtime: a part of the CRI's runtime service.
type Runtime interface {
	RunPodSandbox(ctx context.Context, in *runtimeapi.RunPodSandboxRequest, opts ...grpc.CallOption,
	) (*runtimeapi.RunPodSandboxResponse, error)
	StopPodSandbox(ctx context.Context, in *runtimeapi.StopPodSandboxRequest, opts ...grpc.CallOption,
	) (*runtimeapi.StopPodSandboxResponse, error)
	RemovePodSandbox(ctx context.Context, in *runtimeapi.RemovePodSandboxRequest, opts ...grpc.CallOption,
	) (*runtimeapi.RemovePodSandboxResponse, error)
	CreateContainer(ctx context.Context, in *runtimeapi.CreateContainerRequest, opts ...grpc.CallOption,
	) (*runtimeapi.CreateContainerResponse, error)
	StartContainer(ctx context.Context, in *runtimeapi.StartContainerRequest, opts ...grpc.CallOption,
	) (*runtimeapi.StartContainerResponse, error)
	StopContainer(ctx context.Context, in *runtimeapi.StopContainerRequest, opts ...grpc.CallOption,
	) (*runtimeapi.StopContainerResponse, error)
	UpdateContainerResources(ctx context.Context, in *runtimeapi.UpdateContainerResourcesRequest, opts ...grpc.CallOption,
	) (*runtimeapi.UpdateContainerResourcesResponse, error)
	RemoveContainer(ctx context.Context, in *runtimeapi.RemoveContainerRequest, opts ...grpc.CallOption,
	) (*runtimeapi.RemoveContainerResponse, error)
}

// Reader reads all that the runtime holds of a Pod. *pleg.Watcher is one.
type Reader interface {
	Read(ctx context.Context, uid types.UID) (*container.PodStatus, error)
	// KnownEmpty reports whether it is known without asking that nothing is held of a Pod for which nothing was asked.
	KnownEmpty(uid types.UID) bool
	// ReadStarted adds to what was read of a Pod what was made since. Complete reports whether nothing was told of beyond.
	ReadStarted(ctx context.Context, had *container.PodStatus, made pleg.Started) (
		got *container.PodStatus, complete bool, err error)
}

// Images makes images present. *images.Manager is one.
type Images interface {
	Ensure(ctx context.Context, want images.PullRequest) (*runtimeapi.Image, error)
	Forget(uid types.UID)
}

// Volumes sets a Pod's volumes up and takes them down.
type Volumes interface {
	// Mount returns when all volumes of the Pod are set up. It retries until ctx ends.
	Mount(ctx context.Context, pod *corev1.Pod) error
	// Unmount returns when all volumes of the Pod are gone from the node, also those of an earlier process.
	Unmount(ctx context.Context, uid types.UID) error
	// PodUpdated tells of a Pod's new version, for volumes that show parts of it. It does not block.
	PodUpdated(pod *corev1.Pod)
}

// Statuses brings statuses to the API server. *status.Writer is one.
type Statuses interface {
	Set(pod *corev1.Pod, status corev1.PodStatus) bool
	Get(uid types.UID) (corev1.PodStatus, bool)
	Observe(pod *corev1.Pod)
	Finish(pod *corev1.Pod)
	Forget(uid types.UID)
}

// Probes runs the probes of containers. *prober.Manager is one.
type Probes interface {
	ContainerStarted(pod *corev1.Pod, c prober.Container)
	ContainerStopped(uid types.UID, containerID string)
	StopLivenessAndStartup(uid types.UID)
	RemovePod(uid types.UID)
	Ready(containerID string) (ready, known bool)
	Started(containerID string) (started, known bool)
	Failed(containerID string) (prober.Failure, bool)
}

// Hooks runs lifecycle hooks. *lifecycle.Runner is one.
type Hooks interface {
	Run(ctx context.Context, target lifecycle.Target, hook *corev1.LifecycleHandler) error
}

// ContainerRequest is what the configuration of one container follows from.
type ContainerRequest struct {
	Pod   *corev1.Pod
	Start kuberuntime.Start
	// Image is the container's image as the runtime describes it.
	Image *runtimeapi.Image
	// ImageVolumes are the images of its volumes that are images, by the volume's name.
	ImageVolumes map[string]*runtimeapi.Image
	// PodIPs are the Pod's addresses, the primary one first.
	PodIPs []string
}

// Builder says what the runtime is told about a Pod, and makes on disk what that refers to.
type Builder interface {
	// PreparePod makes the Pod's directories and cgroup. It may be called again.
	PreparePod(ctx context.Context, pod *corev1.Pod) error
	// Sandbox is the sandbox's configuration and the name of its runtime handler.
	Sandbox(ctx context.Context, pod *corev1.Pod, attempt uint32) (*runtimeapi.PodSandboxConfig, string, error)
	// Container is a container's configuration. It needs the Pod's volumes to be mounted.
	Container(ctx context.Context, req ContainerRequest) (*runtimeapi.ContainerConfig, error)
	// Resources is what the runtime is told of a container's resources; nil if that is not known yet.
	Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources
	// ResizePod gives the Pod's cgroup the limits of its spec, or, before its containers change theirs, no limits.
	ResizePod(ctx context.Context, pod *corev1.Pod, limited bool) error
	// SetBurstableCPU gives the cgroup of all Burstable Pods the CPU weight of what they request together, in thousandths
	// of a CPU.
	SetBurstableCPU(ctx context.Context, milliCPU int64) error
	// ReleasePod undoes PreparePod and Container for a Pod that is stopped, before its volumes are unmounted,
	// but leaves its logs.
	ReleasePod(ctx context.Context, uid types.UID) error
	// ForgetPod removes what ReleasePod left, after the volumes are gone and the Pod is gone from the API.
	ForgetPod(ctx context.Context, pod *corev1.Pod) error
	// LastAttempt is the highest restart count of the named container that the Pod's logs tell of.
	LastAttempt(pod *corev1.Pod, name string) (uint32, bool)
	// TerminationMessage is what an ended instance left to say, by its termination message policy.
	TerminationMessage(ctx context.Context, c *container.ContainerStatus) string
}

// Admitter says what the node has room for, given the Pods that it has; nil means yes.
type Admitter interface {
	// Admit says whether the node takes a Pod.
	Admit(pod *corev1.Pod, others []*corev1.Pod) *status.Failure
	// Resize says whether a Pod that runs here with the resources of granted may have those that its spec asks for now.
	// The reason of a failure is Deferred if there may be room later, and Infeasible, with a Detail, if it never can be.
	Resize(granted, pod *corev1.Pod, others []*corev1.Pod) *status.Failure
}

// Allocations remembers across processes what Pods were granted and told. *allocation.Store is one.
type Allocations interface {
	// Allocated is the Pod with the resources it was granted last, nil if that is not known.
	Allocated(pod *corev1.Pod) *corev1.Pod
	// HasPendingActuation reports whether a container is known to have been told something else than the Pod was granted.
	HasPendingActuation(pod *corev1.Pod) bool
	// Allocate notes that a Pod was granted what its spec says, Actuate that one of its containers was told so.
	Allocate(pod *corev1.Pod)
	Actuate(pod *corev1.Pod, container string)
	Forget(uid types.UID)
}

// noAllocations remembers nothing.
type noAllocations struct{}

func (noAllocations) Allocated(*corev1.Pod) *corev1.Pod    { return nil }
func (noAllocations) HasPendingActuation(*corev1.Pod) bool { return false }
func (noAllocations) Allocate(*corev1.Pod)                 {}
func (noAllocations) Actuate(*corev1.Pod, string)          {}
func (noAllocations) Forget(types.UID)                     {}

// Config are the values a Manager works with.
type Config struct {
	// RuntimeName is the scheme of container ids in statuses; "containerd" if empty.
	RuntimeName string
	// HostIPs are the node's addresses, the primary one first; nil means that it has none.
	HostIPs func() []string
	// MaxBackoff is the longest wait of a crash loop; 0 for kuberuntime.MaxBackoff.
	MaxBackoff time.Duration
}

func (c Config) withDefaults() Config {
	if c.HostIPs == nil {
		c.HostIPs = func() []string { return nil }
	}
	if c.RuntimeName == "" {
		c.RuntimeName = "containerd"
	}
	return c
}

// Deps are what a Manager needs from others. Allocations, Metrics, Timeline, Recorder, Logger, Clock and Gone may be nil.
type Deps struct {
	// OnPodGone is told of each Pod of which nothing is left on the node. It may call the Manager.
	OnPodGone func(uid types.UID)

	// Signals are made before the Manager, which handles them from Start on.
	Signals  *Signals
	Runtime  Runtime
	Reader   Reader
	Images   Images
	Volumes  Volumes
	Statuses Statuses
	Probes   Probes
	Hooks    Hooks
	Builder  Builder
	Admitter Admitter
	Metrics  Metrics
	// Allocations may be nil: then statuses alone tell what was granted.
	Allocations Allocations
	Timeline    *timeline.Recorder
	Recorder    record.EventRecorder
	Logger      *slog.Logger
	Clock       clock.Clock
}

// complete checks the required dependencies and fills in the optional ones.
func (d *Deps) complete() error {
	for _, dep := range []struct {
		name    string
		missing bool
	}{
		{"Runtime", d.Runtime == nil}, {"Reader", d.Reader == nil}, {"Images", d.Images == nil},
		{"Volumes", d.Volumes == nil}, {"Statuses", d.Statuses == nil}, {"Probes", d.Probes == nil},
		{"Hooks", d.Hooks == nil}, {"Builder", d.Builder == nil}, {"Admitter", d.Admitter == nil},
	} {
		if dep.missing {
			return fmt.Errorf("podworker: Deps.%s is required", dep.name)
		}
	}
	if d.Signals == nil {
		d.Signals = NewSignals()
	}
	if d.OnPodGone == nil {
		d.OnPodGone = func(types.UID) {}
	}
	if d.Allocations == nil {
		d.Allocations = noAllocations{}
	}
	if d.Metrics == nil {
		d.Metrics = noMetrics{}
	}
	if d.Recorder == nil {
		d.Recorder = &record.FakeRecorder{}
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	return nil
}
