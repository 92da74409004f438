package qos

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
)

// systemCriticalPriority is the lowest priority of system priority classes.
const systemCriticalPriority = 2_000_000_000

// IsCritical reports whether the node or the cluster needs the Pod: a static Pod, a mirror Pod, or a Pod of a system
// priority.
func IsCritical(pod *corev1.Pod) bool {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror || podutil.IsStatic(pod) {
		return true
	}
	return pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCriticalPriority
}
