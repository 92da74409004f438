package container

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// State is the state of a container, as the runtime reports it.
type State string

const (
	// StateCreated is a container that was created and never ran: whoever made it died in between, or the start was
	// cut off in the middle, whatever the runtime calls that.
	StateCreated State = "created"
	// StateRunning is a container whose process runs.
	StateRunning State = "running"
	// StateExited is a container whose process has ended.
	StateExited State = "exited"
	// StateUnknown is a container of which the runtime does not know whether it runs. It has to be killed before
	// another instance may start.
	StateUnknown State = "unknown"
)

// PodStatus is what the runtime holds of one Pod, at one instant.
type PodStatus struct {
	UID       types.UID
	Name      string
	Namespace string
	// Sandboxes are all sandboxes of the Pod, the newest first: by attempt, because clocks are set back.
	Sandboxes []*runtimeapi.PodSandboxStatus
	// Containers are all instances of all containers of the Pod, the newest first.
	Containers []*ContainerStatus
	// IPs are the addresses of the newest ready sandbox, the primary one first. Empty for a Pod on the host's
	// network, whose addresses only the node knows.
	IPs []string
}

// ContainerStatus is one instance of a container: every restart makes another one. It has many fields because it mirrors the
// container status of the CRI.
type ContainerStatus struct {
	// ID is the runtime's bare id, without the "containerd://" in front.
	ID string
	// SandboxID is the sandbox the instance was made in. The CRI does not say it in ContainerStatus, so it is empty
	// unless the reader filled it from ListContainers or an event.
	SandboxID string
	Name      string
	State     State
	CreatedAt time.Time
	// StartedAt is the zero time until the container was started.
	StartedAt time.Time
	// FinishedAt is the zero time until the container has ended.
	FinishedAt time.Time
	ExitCode   int32
	// Reason and Message are the runtime's words, "OOMKilled" or "Error" for instance.
	Reason  string
	Message string

	// Image is the image as the runtime names it (status.image of the API), or else as the user wrote it.
	Image string
	// ImageRef is the digest reference of the image (status.imageID of the API), and ImageID the runtime's own id.
	ImageRef string
	ImageID  string
	// RuntimeHandler is the handler that the image was pulled for, if any.
	RuntimeHandler string

	// Attempt is the restart count of this instance: 0 for the first one.
	Attempt uint32
	// SpecHash is the hash of name and image in the spec the instance was made from; 0 if it was not noted.
	SpecHash uint64
	// LogPath is the absolute path of the instance's log file.
	LogPath string

	TerminationMessagePath   string
	TerminationMessagePolicy corev1.TerminationMessagePolicy
	// PreStop, PodGracePeriod and DeletionGracePeriod are what the instance's annotations say, so that it can be
	// stopped properly after a restart even if the Pod object is gone. Nil if they were not set.
	PreStop             *corev1.LifecycleHandler
	PodGracePeriod      *int64
	DeletionGracePeriod *int64
	// Ports are the ports of the spec, for hooks and probes that name one.
	Ports []corev1.ContainerPort

	Labels      map[string]string
	Annotations map[string]string
	// Mounts, User and Resources are as the runtime reports them; nil if it does not.
	Mounts    []*runtimeapi.Mount
	User      *runtimeapi.ContainerUser
	Resources *runtimeapi.ContainerResources
	// StopSignal is the signal that asks the container to end.
	StopSignal runtimeapi.Signal
}

// With returns the status with sandboxes and containers of another in it, which replace those with the same ids. Neither
// of the two is changed.
func (p *PodStatus) With(more *PodStatus) *PodStatus {
	out := *p
	out.Sandboxes, out.Containers = slices.Clone(more.Sandboxes), slices.Clone(more.Containers)
	if out.Name == "" {
		out.Name, out.Namespace = more.Name, more.Namespace
	}
	for _, box := range p.Sandboxes {
		if !slices.ContainsFunc(more.Sandboxes, func(s *runtimeapi.PodSandboxStatus) bool { return s.Id == box.Id }) {
			out.Sandboxes = append(out.Sandboxes, box)
		}
	}
	for _, c := range p.Containers {
		if more.FindID(c.ID) == nil {
			out.Containers = append(out.Containers, c)
		}
	}
	out.arrange()
	return &out
}

// Find returns the newest instance of the container with that name, or nil.
func (p *PodStatus) Find(name string) *ContainerStatus {
	if p == nil {
		return nil
	}
	for _, c := range p.Containers {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// FindExited returns the newest instance of that name that has ended, or nil.
func (p *PodStatus) FindExited(name string) *ContainerStatus {
	if p == nil {
		return nil
	}
	for _, c := range p.Containers {
		if c.Name == name && c.State == StateExited {
			return c
		}
	}
	return nil
}

// All returns every instance of the container with that name, the newest first.
func (p *PodStatus) All(name string) []*ContainerStatus {
	if p == nil {
		return nil
	}
	var found []*ContainerStatus
	for _, c := range p.Containers {
		if c.Name == name {
			found = append(found, c)
		}
	}
	return found
}

// FindID returns the instance with that runtime id, or nil.
func (p *PodStatus) FindID(id string) *ContainerStatus {
	if p == nil {
		return nil
	}
	for _, c := range p.Containers {
		if c.ID == id {
			return c
		}
	}
	return nil
}

// Running returns the instances that run, or that may run (StateUnknown), the newest first.
func (p *PodStatus) Running() []*ContainerStatus {
	if p == nil {
		return nil
	}
	var running []*ContainerStatus
	for _, c := range p.Containers {
		if c.State == StateRunning || c.State == StateUnknown {
			running = append(running, c)
		}
	}
	return running
}

// LatestSandbox returns the newest sandbox, ready or not, or nil.
func (p *PodStatus) LatestSandbox() *runtimeapi.PodSandboxStatus {
	if p == nil || len(p.Sandboxes) == 0 {
		return nil
	}
	return p.Sandboxes[0]
}

// ReadySandboxes returns the sandboxes that the runtime holds ready, the newest first.
func (p *PodStatus) ReadySandboxes() []*runtimeapi.PodSandboxStatus {
	if p == nil {
		return nil
	}
	var ready []*runtimeapi.PodSandboxStatus
	for _, s := range p.Sandboxes {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			ready = append(ready, s)
		}
	}
	return ready
}

// Empty says that the runtime holds nothing of the Pod.
func (p *PodStatus) Empty() bool {
	return p == nil || len(p.Sandboxes) == 0 && len(p.Containers) == 0
}
