package status

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/qos"
)

// Waiting is why a container is not running.
type Waiting struct {
	// Reason and Message are those of status.state.waiting.
	Reason, Message string
}

// Failure is why a Pod as a whole has failed, other than by its containers' exit codes.
type Failure struct {
	// Reason and Message are those of the Pod's status: DeadlineExceeded, Evicted, OutOfcpu, ….
	Reason, Message string
	// Disruption says that the kubelet ended the Pod for the sake of others: the ended Pod gets the condition
	// DisruptionTarget.
	Disruption bool
	// Detail is the value for metrics, as upstream names it, and not part of the status: the signal of an eviction, or
	// why a resize is infeasible.
	Detail string
	// Final, if set, has more of the status of the ended Pod.
	Final *Final
	// ByExitCodes says that the Pod has succeeded after all if each of its containers has.
	ByExitCodes bool
	// Discard says that the ended Pod's containers are removed at once, with what they have written.
	Discard bool
}

// Final is the phase of an ended Pod, Succeeded or Failed, and conditions that are added to its status.
type Final struct {
	Phase      corev1.PodPhase
	Conditions []corev1.PodCondition
}

// Resize is the progress of a change of a running Pod's resources.
type Resize struct {
	// Pending, if set, is why the node has not allocated the resources of the spec.
	Pending *Failure
	// InProgress says that the allocated resources are not in effect yet, and Error why.
	InProgress bool
	Error      string
	// PendingContainers are the names of the containers that still have their former resources, and PodPending says that
	// the Pod as a whole has.
	PendingContainers map[string]bool
	PodPending        bool
}

// Probes returns the results of a container's probes, by runtime id. A container without such a probe counts as started
// and ready as soon as it runs.
type Probes interface {
	Started(container *corev1.Container, id string) bool
	Ready(container *corev1.Container, id string) bool
}

// Input is what a Pod's status is computed from.
type Input struct {
	Pod *corev1.Pod
	// Old is the status as last computed, or as the API server has it if none was computed yet.
	Old corev1.PodStatus
	// Runtime is the Pod's state in the runtime; nil if it was not read yet.
	Runtime *container.PodStatus
	// RuntimeName is the scheme of container ids, "containerd" for instance.
	RuntimeName string
	// Waiting is, by container name, why a container that should run does not.
	Waiting map[string]Waiting
	// Restarting reports whether the instance with the runtime id was stopped so that another one starts, whatever its exit
	// code and its restart policy say. Nil knows none.
	Restarting func(id string) bool
	// Messages are the termination messages of ended instances, by runtime id.
	Messages map[string]string
	// Probes may be nil: then no container has probes.
	Probes Probes
	// HostIPs are the node's addresses, the primary one first.
	HostIPs []string
	// Prepared says that sandbox, network and volumes are ready.
	Prepared bool
	// Ended says that everything of the Pod has stopped and nothing will start again. Only then may the phase become
	// Succeeded or Failed.
	Ended bool
	// Resize is the progress of a change of the Pod's resources; nil if there is none.
	Resize *Resize
	// Devices returns the health of the devices that a container has from device plugins and claims; nil for none.
	Devices func(container string) []corev1.ResourceStatus
	// Failure, if set, makes the phase Failed once the Pod has ended.
	Failure *Failure
	Now     time.Time
}

// Compute returns the Pod's status. It never modifies its input, and never leaves a terminal phase.
func Compute(in Input) corev1.PodStatus {
	pod := in.Pod
	out := corev1.PodStatus{
		ObservedGeneration: pod.Generation,
		QOSClass:           pod.Status.QOSClass,
		StartTime:          in.Old.StartTime,
		HostIP:             in.Old.HostIP,
		HostIPs:            in.Old.HostIPs,
		PodIP:              in.Old.PodIP,
		PodIPs:             in.Old.PodIPs,
		Reason:             in.Old.Reason,
		Message:            in.Old.Message,
	}
	out.ObservedGeneration = max(out.ObservedGeneration, in.Old.ObservedGeneration)
	if out.QOSClass == "" {
		out.QOSClass = qos.Class(pod)
	}
	if out.StartTime == nil {
		now := metav1.NewTime(in.Now.Truncate(time.Second))
		out.StartTime = &now
	}
	setAddresses(&in, &out)
	setContainerStatuses(&in, &out)
	setPhase(&in, &out)
	setConditions(&in, &out)
	setPodResources(&in, &out)
	return out
}

// Rejected returns the status of a Pod that the node does not admit: it fails before anything was created for it.
func Rejected(pod *corev1.Pod, failure Failure, now time.Time) corev1.PodStatus {
	in := Input{Pod: pod, Old: pod.Status, Now: now}
	out := corev1.PodStatus{
		ObservedGeneration: pod.Generation,
		QOSClass:           pod.Status.QOSClass,
		StartTime:          pod.Status.StartTime,
		Phase:              corev1.PodFailed,
		Reason:             failure.Reason,
		Message:            failure.Message,
	}
	if out.QOSClass == "" {
		out.QOSClass = qos.Class(pod)
	}
	if out.StartTime == nil {
		t := metav1.NewTime(now.Truncate(time.Second))
		out.StartTime = &t
	}
	setConditions(&in, &out)
	return out
}

// isTerminal reports whether a phase is final.
func isTerminal(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// setAddresses sets the node's and the Pod's addresses. An ended Pod keeps those that it had. Before that, those of a sandbox that is gone are
// not the Pod's any more: the network plugin may give them to another one.
func setAddresses(in *Input, out *corev1.PodStatus) {
	if len(in.HostIPs) > 0 {
		out.HostIP, out.HostIPs = in.HostIPs[0], nil
		for _, ip := range in.HostIPs {
			out.HostIPs = append(out.HostIPs, corev1.HostIP{IP: ip})
		}
	}
	var ips []string
	switch {
	case in.Pod.Spec.HostNetwork:
		ips = hostNetworkAddresses(out.PodIPs, in.HostIPs)
	case in.Runtime != nil:
		ips = container.OnePerFamily(in.Runtime.IPs, out.HostIP)
		if !in.Ended {
			out.PodIP, out.PodIPs = "", nil
		}
	}
	if len(ips) == 0 {
		return
	}
	out.PodIP, out.PodIPs = ips[0], nil
	for _, ip := range ips {
		out.PodIPs = append(out.PodIPs, corev1.PodIP{IP: ip})
	}
}

// hostNetworkAddresses returns the addresses of a Pod on the host's network, which are the node's when it starts. They stay for its life, but one
// of the other family is added when the node gets it.
func hostNetworkAddresses(have []corev1.PodIP, node []string) []string {
	if len(have) == 0 {
		return node
	}
	var ips []string
	for _, ip := range have {
		ips = append(ips, ip.IP)
	}
	return container.OnePerFamily(append(ips, node...), ips[0])
}

// setPhase sets the phase from the container statuses in out.
func setPhase(in *Input, out *corev1.PodStatus) {
	old := in.Old.Phase
	if isTerminal(in.Pod.Status.Phase) {
		old = in.Pod.Status.Phase
	}
	if isTerminal(old) {
		out.Phase = old
		return
	}
	next := phase(&in.Pod.Spec, out.InitContainerStatuses, out.ContainerStatuses, initialized(in, out))
	switch {
	case in.Failure != nil:
		if next = corev1.PodFailed; in.Failure.Final != nil {
			next = in.Failure.Final.Phase
		}
		if in.Failure.ByExitCodes {
			next = endedPhase(out)
		}
	case in.Ended && !isTerminal(next):
		next = endedPhase(out)
	}
	if isTerminal(next) && !in.Ended {
		// Something may still run: a sidecar, or a container that is being killed.
		next = old
		if next == "" {
			next = corev1.PodPending
		}
		if next == corev1.PodPending && anyStarted(out.ContainerStatuses) {
			next = corev1.PodRunning
		}
	}
	out.Phase = next
	if in.Failure != nil && in.Ended {
		out.Reason, out.Message = in.Failure.Reason, in.Failure.Message
	}
}

// initialized reports whether a main container was started after the init containers. One of an earlier sandbox does not
// count while the Pod is to run: after a reboot the init containers run again.
func initialized(in *Input, out *corev1.PodStatus) bool {
	if in.Runtime == nil || in.Ended {
		return anyStarted(out.ContainerStatuses)
	}
	return kuberuntime.Initialized(in.Pod, in.Runtime)
}

// endedPhase returns the phase of a Pod that was stopped: Succeeded if all its containers did.
func endedPhase(out *corev1.PodStatus) corev1.PodPhase {
	for _, s := range out.ContainerStatuses {
		if s.State.Terminated == nil || s.State.Terminated.ExitCode != 0 {
			return corev1.PodFailed
		}
	}
	return corev1.PodSucceeded
}

func anyStarted(statuses []corev1.ContainerStatus) bool {
	for _, s := range statuses {
		if s.State.Running != nil || s.State.Terminated != nil || s.LastTerminationState.Terminated != nil {
			return true
		}
	}
	return false
}
