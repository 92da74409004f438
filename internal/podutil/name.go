package podutil

import corev1 "k8s.io/api/core/v1"

// Name returns the Pod's namespace and name as NAMESPACE/NAME.
func Name(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }
