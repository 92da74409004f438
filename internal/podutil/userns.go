package podutil

import corev1 "k8s.io/api/core/v1"

// HasUserNamespace reports whether the users of the Pod's containers are others than those of the machine.
func HasUserNamespace(pod *corev1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }
