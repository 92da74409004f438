package kuberuntime

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
)

// KillReason is why a running container is to be killed while its Pod goes on.
type KillReason string

const (
	// KillUnknown is a container of which the runtime does not know whether it runs.
	KillUnknown KillReason = "Unknown"
	// KillDefinitionChanged is a container whose image was changed in the spec.
	KillDefinitionChanged KillReason = "DefinitionChanged"
	// KillLiveness and KillStartup are failed probes; their own terminationGracePeriodSeconds counts.
	KillLiveness KillReason = "LivenessProbe"
	KillStartup  KillReason = "StartupProbe"
	// KillResize is a container that can take its new resources only by a restart.
	KillResize KillReason = "Resize"
	// KillRestartAll is a container that goes down because another one's exit asks for a restart of all.
	KillRestartAll KillReason = "RestartAllContainers"
)

// ProbeResult is what a probe has said last of one container instance.
type ProbeResult int

const (
	// ProbeUnknown is no answer yet. For a startup probe it means "not started", for a liveness probe "alive".
	ProbeUnknown ProbeResult = iota
	// ProbeSuccess and ProbeFailure are answers past the probe's threshold.
	ProbeSuccess
	ProbeFailure
)

// Actions is what is to be done for a Pod now. The parts are done in the order of the fields: kill, remove, sandbox,
// start. An empty Actions with a NextSync means: nothing now, look again at that time or at the next event.
type Actions struct {
	// KillPod asks for all containers and sandboxes of the Pod to be stopped before anything else.
	KillPod bool
	// Finished says that the Pod's work is over: nothing is to be started, and what still runs (sidecars) has to
	// end. KillPod is set with it.
	Finished bool
	// SandboxChanged says that CreateSandbox replaces a sandbox that was there (event SandboxChanged).
	SandboxChanged bool

	// RestartAll says that a container's exit asks for all of them to start over. Kill and Remove then list what is
	// in the way; nothing is started until they are gone.
	RestartAll bool
	// Kill are the instances to be stopped, in order.
	Kill []Kill
	// Remove are the instances to be removed from the runtime, in order, after Kill. Their logs stay: the restart
	// count is read from them.
	Remove []*container.ContainerStatus

	// CreateSandbox asks for a new sandbox with number Attempt. If it is false, SandboxID is the one to start in.
	CreateSandbox bool
	Attempt       uint32
	SandboxID     string

	// Resize are the running containers that are to get other limits while they run.
	Resize []Resize
	// Start are the containers to be created and started, in that order, one after another.
	Start []Start
	// Waiting are the containers that would be started but for their backoff.
	Waiting []Waiting
	// NextSync is when the Pod is to be looked at again even if nothing happens: the earliest end of a backoff. The
	// zero time means never.
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
}

// Start is one container to be created and started.
type Start struct {
	Kind  podutil.Kind
	Index int // in its list
	// Container is the spec; an ephemeral container's is its EphemeralContainerCommon. Owned by the Pod.
	Container *corev1.Container
	// Attempt is the restart count of the new instance.
	Attempt uint32
	// Blocking says that if this container does not come up (postStart hook included), nothing that stands behind
	// it in Actions.Start may be started before the next look.
	Blocking bool
	// TargetID is the runtime id of the container whose PID namespace an ephemeral container joins, or empty.
	TargetID string
	// BackoffKey and BackoffSince are for [Backoff.Started], which is to be called right before the instance is
	// made. BackoffSince is the zero time if there is nothing to note.
	BackoffKey   string
	BackoffSince time.Time
}

// Inputs is what ComputeActions has to know beside the Pod and what the runtime holds of it.
type Inputs struct {
	Now time.Time
	// Backoff holds the crash-loop waits; nil means that nobody ever waits.
	Backoff *Backoff
	// Startup and Liveness tell the newest verdict of the container instance with that runtime id; nil functions
	// know of none. A container without such a probe is never asked for.
	Startup, Liveness func(containerID string) ProbeResult
	// Resources tells what the runtime is to be told of a container's resources; nil leaves running containers as they
	// are. The caller may change what it returns.
	Resources func(c *corev1.Container) *runtimeapi.LinuxContainerResources
	// LastAttempt tells the highest restart count known of a container beside what the runtime holds, which may have
	// lost the newest instances: from its log directory, see [LastAttemptInLogs]. It is asked only for containers that
	// are to be started. Nil knows of none.
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
