package podworker

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/timeline"
)

const (
	// reasonPreempting is the reason of a preempted Pod's status and event.
	reasonPreempting  = "Preempting"
	messagePreempting = "Preempted in order to admit critical pod"
	messageDisruption = "Pod was preempted by Kubelet to accommodate a critical pod."
)

// Preemptor chooses the Pods that end for a critical Pod.
type Preemptor interface {
	// Preempt returns the Pods that have to end so that the node has the resources for the Pod, out of others.
	Preempt(pod *corev1.Pod, others []*corev1.Pod) Preemption
}

// Preemption are the Pods that end for a critical Pod.
type Preemption struct {
	Victims []*corev1.Pod
	// Signal is the resource that was missing first, for the metrics.
	Signal string
}

// choosePreempted returns what the Pod preempts, and the other Pods without those. The caller holds mu.
func (m *Manager) choosePreempted(pod *corev1.Pod, others []*corev1.Pod) (Preemption, []*corev1.Pod) {
	if m.deps.Preemptor == nil {
		return Preemption{}, others
	}
	chosen := m.deps.Preemptor.Preempt(pod, others)
	left := slices.DeleteFunc(slices.Clone(others), func(other *corev1.Pod) bool { return slices.Contains(chosen.Victims, other) })
	return chosen, left
}

// preempt ends the victims within their own grace periods, with preStop hooks and in order as always. The worker starts when
// none of their containers runs any more. Their resources count as free from now on. The caller holds mu.
func (m *Manager) preempt(w *worker, preemption Preemption) {
	for _, pod := range preemption.Victims {
		victim := m.workers[pod.UID]
		if victim == nil {
			continue
		}
		victim.preempted = true
		ended := make(chan struct{})
		w.startAfter = append(w.startAfter, ended)
		m.deps.Recorder.Event(pod, corev1.EventTypeWarning, reasonPreempting, messagePreempting)
		m.deps.Logger.Warn("Pod is preempted by a critical Pod", "pod", pod.Namespace+"/"+pod.Name, "uid", pod.UID,
			"critical", w.pod.Namespace+"/"+w.pod.Name, "resource", preemption.Signal)
		m.deps.Timeline.Mark(timeline.PodRef(pod), owner, timeline.StageAdmitted, "",
			failureError(&status.Failure{Reason: reasonPreempting, Message: messagePreempting}))
		m.deps.Metrics.Preempted(preemption.Signal)
		// Programs may end with 0 when they are asked to: such a Pod has succeeded, as Kubernetes' specs expect.
		request := KillRequest{Status: preemptedStatus, ByExitCodes: true, Done: func(error) { close(ended) }}
		victim.post(func() { victim.kills = append(victim.kills, request) })
	}
}

func preemptedStatus(*corev1.Pod, *container.PodStatus) corev1.PodStatus {
	return corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: reasonPreempting, Message: messagePreempting,
		Conditions: []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet,
			Message: messageDisruption,
		}},
	}
}

// waitToStart waits for the Pods that end for the worker's. It returns false if ctx ends before.
func (w *worker) waitToStart(ctx context.Context) bool {
	for _, ended := range w.startAfter {
		select {
		case <-ended:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
