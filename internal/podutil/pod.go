package podutil

import (
	corev1 "k8s.io/api/core/v1"
)

const (
	// SourceAnnotation names the source of a Pod: "api", "file", "http" or the name of a caller's own source. The
	// kubelet sets it on its own copy of a Pod; it is never written to the API.
	SourceAnnotation = "kubernetes.io/config.source"
	// SourceAPI is the value of SourceAnnotation for Pods of the API server.
	SourceAPI = "api"
)

// FindCondition returns the Pod's condition of that type, or nil. It points into the status.
func FindCondition(status *corev1.PodStatus, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range status.Conditions {
		if status.Conditions[i].Type == kind {
			return &status.Conditions[i]
		}
	}
	return nil
}

// IsReady reports whether the status has condition Ready with status True.
func IsReady(status *corev1.PodStatus) bool {
	condition := FindCondition(status, corev1.PodReady)
	return condition != nil && condition.Status == corev1.ConditionTrue
}

// IsTerminal reports whether the Pod has ended: its phase is Succeeded or Failed and never changes again.
func IsTerminal(status *corev1.PodStatus) bool {
	return status.Phase == corev1.PodSucceeded || status.Phase == corev1.PodFailed
}

// HasClaims reports whether a Pod has ResourceClaims, its own or one for its extended resources.
func HasClaims(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil
}

// IsStatic reports whether the Pod comes from a source of this node: a file, a URL, or a caller of the kubelet's
// library. A Pod that did not pass through a source is not static.
func IsStatic(pod *corev1.Pod) bool {
	source := pod.Annotations[SourceAnnotation]
	return source != "" && source != SourceAPI
}

// IsMirror reports whether the Pod is the API server's copy of a static Pod. It is never run.
func IsMirror(pod *corev1.Pod) bool {
	_, marked := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return marked && !IsStatic(pod)
}
