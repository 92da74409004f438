package qos

import (
	corev1 "k8s.io/api/core/v1"
)

const (
	// systemCritical is the least priority that users' own priority classes cannot have.
	systemCritical = 2_000_000_000
	// sourceAnnotation says where a Pod comes from, mirrorAnnotation that it shows a static one.
	sourceAnnotation = "kubernetes.io/config.source"
	mirrorAnnotation = "kubernetes.io/config.mirror"
)

// Critical reports whether the node or the cluster cannot do without the Pod: a static Pod, the mirror of one, or a Pod of
// a system priority.
func Critical(pod *corev1.Pod) bool {
	if source := pod.Annotations[sourceAnnotation]; source != "" && source != "api" {
		return true
	}
	if _, mirror := pod.Annotations[mirrorAnnotation]; mirror {
		return true
	}
	return pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCritical
}
