package podworker

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/pleg"
	"github.com/berth-dev/berth/kubelet/prober"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/timeline"
)

// Runtime is the part of the CRI's runtime service that a Manager uses.
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
	// UpdatePodSandboxResources notifies the runtime of what all containers of a Pod get together.
	UpdatePodSandboxResources(ctx context.Context, in *runtimeapi.UpdatePodSandboxResourcesRequest, opts ...grpc.CallOption,
	) (*runtimeapi.UpdatePodSandboxResourcesResponse, error)
	// PodSandboxStats reads the memory that a Pod uses, before its limits become lower.
	PodSandboxStats(ctx context.Context, in *runtimeapi.PodSandboxStatsRequest, opts ...grpc.CallOption,
	) (*runtimeapi.PodSandboxStatsResponse, error)
}

// Reader reads a Pod's state in the runtime. *pleg.Watcher implements it.
type Reader interface {
	Read(ctx context.Context, uid types.UID) (*container.PodStatus, error)
	// KnownEmpty reports whether it is known without a read that the runtime has nothing of a Pod that was not started
	// here.
	KnownEmpty(uid types.UID) bool
	// ReadStarted adds to a Pod's state what was started since. complete reports whether events have reported nothing
	// else.
	ReadStarted(ctx context.Context, had *container.PodStatus, made pleg.Started) (
		got *container.PodStatus, complete bool, err error)
}

// Images ensures that images are present. *images.Manager implements it.
type Images interface {
	Ensure(ctx context.Context, want images.PullRequest) (*runtimeapi.Image, error)
	Forget(uid types.UID)
}

// Volumes mounts and unmounts a Pod's volumes.
type Volumes interface {
	// Mount returns when all volumes of the Pod are mounted. It retries until ctx ends.
	Mount(ctx context.Context, pod *corev1.Pod) error
	// Unmount returns when all volumes of the Pod are unmounted, also those of an earlier process.
	Unmount(ctx context.Context, uid types.UID) error
	// PodUpdated reports a Pod's new version, for volumes that contain parts of it. It does not block.
	PodUpdated(pod *corev1.Pod)
}

// Statuses writes statuses to the API server. *mirror.Manager implements it.
type Statuses interface {
	Set(pod *corev1.Pod, status corev1.PodStatus) bool
	Get(uid types.UID) (corev1.PodStatus, bool)
	// Previous returns the status of the Pod that is in the API, as an earlier process wrote it; false while that may not be
	// known yet. When it is, Signals.Wake is called.
	Previous(pod *corev1.Pod) (corev1.PodStatus, bool)
	Observe(pod *corev1.Pod)
	Finish(pod *corev1.Pod)
	Forget(uid types.UID)
}

// Probes runs the probes of containers. *prober.Manager implements it.
type Probes interface {
	ContainerStarted(pod *corev1.Pod, c prober.Container)
	ContainerStopped(uid types.UID, containerID string)
	StopLivenessAndStartup(uid types.UID)
	RemovePod(uid types.UID)
	Ready(containerID string) (ready, known bool)
	Started(containerID string) (started, known bool)
	Failed(containerID string) (prober.Failure, bool)
}

// Hooks runs lifecycle hooks. *lifecycle.Runner implements it.
type Hooks interface {
	Run(ctx context.Context, target lifecycle.Target, hook *corev1.LifecycleHandler) error
}

// ContainerRequest is what the configuration of one container is computed from.
type ContainerRequest struct {
	Pod   *corev1.Pod
	Start kuberuntime.Start
	// Image is the container's image as the runtime describes it.
	Image *runtimeapi.Image
	// ImageVolumes are the images of its image volumes, by the volume's name.
	ImageVolumes map[string]*runtimeapi.Image
	// PodIPs are the Pod's addresses, the primary one first.
	PodIPs []string
}

// Builder computes the requests to the runtime about a Pod, and makes the directories and cgroups that they refer to.
type Builder interface {
	// PreparePod creates the Pod's directories and cgroup. It may be called again.
	PreparePod(ctx context.Context, pod *corev1.Pod) error
	// PrepareResources has drivers prepare the ResourceClaims of the Pod. It may be called again.
	PrepareResources(ctx context.Context, pod *corev1.Pod) error
	// UnprepareResources has drivers unprepare the ResourceClaims of a Pod that is stopped. It may be called again.
	UnprepareResources(ctx context.Context, uid types.UID) error
	// RuntimeHandler returns the name of the runtime handler of a new sandbox; the API server has it.
	RuntimeHandler(ctx context.Context, pod *corev1.Pod) (string, error)
	// Sandbox returns the sandbox's configuration.
	Sandbox(ctx context.Context, pod *corev1.Pod, attempt uint32) (*runtimeapi.PodSandboxConfig, error)
	// Container returns a container's configuration. The Pod's volumes must be mounted.
	Container(ctx context.Context, req ContainerRequest) (*runtimeapi.ContainerConfig, error)
	// Resources returns the runtime's resources of a container; nil if they are not known yet.
	Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources
	// CPUs returns on which CPUs a container is to run, and Move the same for one that is about to be moved there; empty for all.
	CPUs(uid types.UID, container string) string
	Move(uid types.UID, container string) string
	// Placed records on which CPUs the Pod's containers are that run or may run; "" stands for all of the machine. Those in
	// transition are as well where Container and Move have said.
	Placed(uid types.UID, running map[string]string, inTransition func(container string) bool)
	// DeviceStatus returns the health of a container's devices; nil if it has none.
	DeviceStatus(pod *corev1.Pod, container string) []corev1.ResourceStatus
	// SandboxResources returns the resources of all containers of a Pod together, and what the runtime itself needs for it
	// (nil for nothing).
	SandboxResources(pod *corev1.Pod) (resources, overhead *runtimeapi.LinuxContainerResources)
	// ResizePod sets the limits of the Pod's cgroup to those of its spec, or removes them while its containers change.
	ResizePod(ctx context.Context, pod *corev1.Pod, limited bool) error
	// SetClassRequests sets the limits of the cgroups of the classes of Pods for the sums of what their Pods request.
	SetClassRequests(ctx context.Context, requests cm.Requests) error
	// ReleasePod undoes PreparePod, PrepareResources and Container for a Pod that is stopped, before its volumes are unmounted,
	// but leaves its logs.
	ReleasePod(ctx context.Context, uid types.UID) error
	// ForgetPod removes what ReleasePod left, after the volumes are unmounted and the Pod is gone from the API.
	ForgetPod(ctx context.Context, pod *corev1.Pod) error
	// LastAttempt returns the highest restart count of the named container in the Pod's logs.
	LastAttempt(pod *corev1.Pod, name string) (uint32, bool)
	// TerminationMessage returns the message of an ended container, by its termination message policy.
	TerminationMessage(ctx context.Context, c *container.ContainerStatus) string
	// Cgroups returns the IDs of the containers and sandboxes of the Pod that have a cgroup.
	Cgroups(pod *corev1.Pod) ([]string, error)
	// RemoveCgroup ends the processes of a container or sandbox of the Pod that the runtime has removed or lost, and removes what may be left
	// of its cgroup.
	RemoveCgroup(ctx context.Context, pod *corev1.Pod, id string) error
	// RemoveTerminationLog removes the file of a removed container's termination message.
	RemoveTerminationLog(c *container.ContainerStatus) error
}

// Admitter decides which Pods the node runs, given its other Pods; nil admits.
type Admitter interface {
	// Admit reports why the node cannot run a Pod.
	Admit(pod *corev1.Pod, others []*corev1.Pod) *status.Failure
	// Readmit reports why the node cannot go on running a Pod that an earlier process has admitted.
	Readmit(pod *corev1.Pod) *status.Failure
	// Resize reports why a Pod that runs with the allocated resources cannot have those of its spec. The reason is
	// Deferred if resources may become free, and Infeasible, with a Detail, if it never can.
	Resize(allocated, pod *corev1.Pod, others []*corev1.Pod) *status.Failure
}

// Allocations stores across processes which resources were allocated to Pods and set on their containers.
// *allocation.Store implements it.
type Allocations interface {
	// Allocated returns the Pod with the resources allocated last, nil if they are not known.
	Allocated(pod *corev1.Pod) *corev1.Pod
	// HasPendingActuation reports whether a container is known to have other resources than were allocated.
	HasPendingActuation(pod *corev1.Pod) bool
	// Allocate records that the resources of the Pod's spec are allocated, Actuate that one of its containers has them, and
	// ActuatePod that the cgroup of the Pod has them.
	Allocate(pod *corev1.Pod)
	Actuate(pod *corev1.Pod, container string)
	ActuatePod(pod *corev1.Pod)
	// ActuatedMemory returns the memory request that a container has, false if it is not known.
	ActuatedMemory(uid types.UID, container string) (resource.Quantity, bool)
	Forget(uid types.UID)
}

// noAllocations stores nothing.
type noAllocations struct{}

func (noAllocations) Allocated(*corev1.Pod) *corev1.Pod    { return nil }
func (noAllocations) HasPendingActuation(*corev1.Pod) bool { return false }
func (noAllocations) Allocate(*corev1.Pod)                 {}
func (noAllocations) Actuate(*corev1.Pod, string)          {}
func (noAllocations) ActuatePod(*corev1.Pod)               {}
func (noAllocations) ActuatedMemory(types.UID, string) (resource.Quantity, bool) {
	return resource.Quantity{}, false
}
func (noAllocations) Forget(types.UID) {}

// Config are the values a Manager works with.
type Config struct {
	// RuntimeName returns the scheme of container ids in statuses. It is called for Pods that have containers only; nil
	// means "containerd".
	RuntimeName func() string
	// HostIPs are the node's addresses, the primary one first; nil means that it has none.
	HostIPs func() []string
	// MaxBackoff is the longest backoff of a crash loop; kuberuntime.MaxBackoff if zero.
	MaxBackoff time.Duration
	// CountMemory counts the memory that Pods request for Builder.SetClassRequests, not only their CPU.
	CountMemory bool
	// ResyncPeriod is the longest time between two syncs of a Pod; DefaultResyncPeriod if zero.
	ResyncPeriod time.Duration
}

func (c Config) withDefaults() Config {
	if c.HostIPs == nil {
		c.HostIPs = func() []string { return nil }
	}
	if c.RuntimeName == nil {
		c.RuntimeName = func() string { return "containerd" }
	}
	if c.ResyncPeriod == 0 {
		c.ResyncPeriod = DefaultResyncPeriod
	}
	return c
}

// Deps are what a Manager needs from others. Optional are Allocations, Metrics, Tracer, Timeline, Recorder, Logger,
// Clock, OnPodGone and OnPodReleased. It has many fields because a worker does each step of a Pod's life with another component.
type Deps struct {
	// OnPodGone is called for each Pod of which nothing is left on the node. It may call the Manager.
	OnPodGone func(uid types.UID)
	// OnPodReleased is called for each Pod whose containers have ended for good. It may be called again.
	OnPodReleased func(uid types.UID)

	// Signals are created before the Manager, which handles them from Start on.
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
	// Preemptor, if set, lets critical Pods preempt others.
	Preemptor Preemptor
	Metrics   Metrics
	// Allocations may be nil: then what was allocated follows from statuses alone.
	Allocations Allocations
	// Tracer makes the spans of syncs; nil makes none.
	Tracer   trace.Tracer
	Timeline *timeline.Recorder
	Recorder record.EventRecorder
	Logger   *slog.Logger
	Clock    clock.Clock
}

// complete checks the required dependencies and fills in the optional ones.
func (d *Deps) complete() error {
	for _, dep := range []struct {
		name    string
		missing bool
	}{
		{"Signals", d.Signals == nil}, {"Runtime", d.Runtime == nil}, {"Reader", d.Reader == nil}, {"Images", d.Images == nil},
		{"Volumes", d.Volumes == nil}, {"Statuses", d.Statuses == nil}, {"Probes", d.Probes == nil},
		{"Hooks", d.Hooks == nil}, {"Builder", d.Builder == nil}, {"Admitter", d.Admitter == nil},
	} {
		if dep.missing {
			return fmt.Errorf("podworker: Deps.%s is required", dep.name)
		}
	}
	if d.OnPodGone == nil {
		d.OnPodGone = func(types.UID) {}
	}
	if d.OnPodReleased == nil {
		d.OnPodReleased = func(types.UID) {}
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
