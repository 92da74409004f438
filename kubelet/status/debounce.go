package status

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-dev/berth/internal/podutil"
)

// debounceDelay is how long a status waits for a later one that contains it. A write costs the API server, and all that
// watch Pods, as much CPU as a good part of a container's start, and on a small node takes it from that start.
const debounceDelay = 500 * time.Millisecond

// canDelay reports whether a status may be written later: it only says that the Pod was seen and its start has begun, or
// it only has a newer generation.
func canDelay(api *corev1.Pod, want corev1.PodStatus) bool {
	return isInitial(api, &want) || onlyGeneration(api.Status, want)
}

// isInitial reports whether a status is the first one of a Pod for which nothing was done yet, without a failure.
func isInitial(api *corev1.Pod, want *corev1.PodStatus) bool {
	if api.Status.StartTime != nil || api.DeletionTimestamp != nil || want.Phase != corev1.PodPending ||
		want.Reason != "" || len(want.PodIPs) > 0 && !api.Spec.HostNetwork {
		return false
	}
	for s := range podutil.Statuses(want) {
		waiting := s.State.Waiting
		if waiting == nil || s.LastTerminationState.Terminated != nil || waiting.Message != "" ||
			waiting.Reason != reasonCreating && waiting.Reason != reasonInitializing {
			return false
		}
	}
	return true
}

// onlyGeneration reports whether two statuses differ only in the generations they were computed from.
func onlyGeneration(a, b corev1.PodStatus) bool {
	return apiequality.Semantic.DeepEqual(withoutGeneration(a), withoutGeneration(b))
}

func withoutGeneration(s corev1.PodStatus) corev1.PodStatus {
	out := *s.DeepCopy()
	out.ObservedGeneration = 0
	for i := range out.Conditions {
		out.Conditions[i].ObservedGeneration = 0
	}
	return out
}
