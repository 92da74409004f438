package kuberuntime

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
)

// KillReason is why a running container is to be killed while its Pod goes on.
type KillReason string

const (
	// KillUnknown is a container whose state the runtime does not know.
	KillUnknown KillReason = "Unknown"
	// KillDefinitionChanged is a container whose image was changed in the spec.
	KillDefinitionChanged KillReason = "DefinitionChanged"
	// KillLiveness and KillStartup are failed probes; their own terminationGracePeriodSeconds counts.
	KillLiveness KillReason = "LivenessProbe"
	KillStartup  KillReason = "StartupProbe"
	// KillResize is a container that can take its new resources only by a restart.
	KillResize KillReason = "Resize"
	// KillRestartAll is a container that is stopped because another one's exit restarts all containers.
	KillRestartAll KillReason = "RestartAllContainers"
)

// ProbeResult is the last result of a probe of one container instance.
type ProbeResult int

const (
	// ProbeUnknown means that there is no result yet. For a startup probe it means "not started", for a liveness probe
	// "alive".
	ProbeUnknown ProbeResult = iota
	// ProbeSuccess and ProbeFailure are results past the probe's threshold.
	ProbeSuccess
	ProbeFailure
)

// Actions is what to do for a Pod now, in the order of the fields: kill, remove, sandbox, start. If all but NextSync is
// empty, nothing is to be done until that time or the next event.
type Actions struct {
	// KillPod says that all containers and sandboxes of the Pod are stopped before anything else.
	KillPod bool
	// Finished says that the Pod's work is done: nothing is started, and what still runs (sidecars) is stopped. KillPod
	// is set too.
	Finished bool
	// SandboxChanged says that CreateSandbox replaces an existing sandbox (event SandboxChanged).
	SandboxChanged bool

	// RestartAll says that a container's exit restarts all containers. Kill and Remove then list those that are
	// replaced; nothing is started until they are gone.
	RestartAll bool
	// Kill are the instances to be stopped, in order.
	Kill []Kill
	// Remove are the instances to be removed from the runtime, in order, after Kill. Their logs stay: the restart
	// count is read from them.
	Remove []*container.ContainerStatus

	// CreateSandbox says that the Pod needs a new sandbox with number Attempt. If it is false, SandboxID is the one to
	// start in.
	CreateSandbox bool
	Attempt       uint32
	SandboxID     string

	// Resize are the running containers whose limits change while they run.
	Resize []Resize
	// Start are the containers to be created and started, in that order, one after another.
	Start []Start
	// Waiting are the containers that wait for the end of their backoff.
	Waiting []Waiting
	// NextSync is when to compute again even without an event: the earliest end of a backoff. The zero time means never.
	NextSync time.Time
}

// Kill is one container instance to be stopped.
type Kill struct {
	Status *container.ContainerStatus
	// Container is the instance's part of the spec; nil if the spec has none of that name.
	Container *corev1.Container
	Reason    KillReason
	// Message is the text of the Killing event.
	Message string
	// GracePeriod overrides the Pod's grace period, in seconds; nil leaves it.
	GracePeriod *int64
	// Restart says that the container is started again, whatever its exit code: see [Inputs.Restarting].
	Restart bool
}

// Start is one container to be created and started.
type Start struct {
	Kind  podutil.Kind
	Index int // in its list
	// Container is the spec; an ephemeral container's is its EphemeralContainerCommon. Owned by the Pod.
	Container *corev1.Container
	// Attempt is the restart count of the new instance.
	Attempt uint32
	// Blocking says that if this container does not start (postStart hook included), nothing after it in Actions.Start
	// is started before the next sync.
	Blocking bool
	// TargetID is the runtime id of the container whose PID namespace an ephemeral container joins, or empty.
	TargetID string
	// BackoffKey and BackoffSince are for [Backoff.Started], which is to be called right before the instance is
	// made. BackoffSince is the zero time if there is nothing to note.
	BackoffKey   string
	BackoffSince time.Time
}

// Inputs is what ComputeActions needs beside the Pod and its state in the runtime.
type Inputs struct {
	Now time.Time
	// Backoff holds the crash-loop backoffs; nil means that no container waits.
	Backoff *Backoff
	// Startup and Liveness return the last probe result of the container instance with that runtime id; nil functions
	// know none. They are called only for a container that has such a probe.
	Startup, Liveness func(containerID string) ProbeResult
	// Resources returns the runtime's resources of a container; nil leaves running containers unchanged. The caller may
	// change the result.
	Resources func(c *corev1.Container) *runtimeapi.LinuxContainerResources
	// ActuatedMemory returns the memory request that a container's running instance has, which the runtime does not know;
	// false, or a nil function, if it is not known.
	ActuatedMemory func(containerName string) (resource.Quantity, bool)
	// Restarting reports whether the container instance with that runtime id was stopped by a Kill with Restart. Such a
	// container is started again whatever its exit code and its restart policy say. Nil knows none.
	Restarting func(containerID string) bool
	// LastAttempt returns the highest known restart count of a container beside those of the runtime, which may have
	// lost the newest instances: that of its log directory, see [LastAttemptInLogs]. It is called only for containers
	// that are started. Nil knows none.
	LastAttempt func(containerName string) (uint32, bool)
}

// Waiting is one container held back by its crash-loop backoff.
type Waiting struct {
	Container string
	// Until is when it may be started, Delay the length of the whole wait.
	Until time.Time
	Delay time.Duration
	// Message is the text for status.state.waiting (reason CrashLoopBackOff) and for the BackOff event.
	Message string
}
