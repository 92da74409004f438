package kuberuntime

import (
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// networkMode returns the Pod's network namespace.
func networkMode(pod *corev1.Pod) runtimeapi.NamespaceMode {
	if pod.Spec.HostNetwork {
		return runtimeapi.NamespaceMode_NODE
	}
	return runtimeapi.NamespaceMode_POD
}

// pidMode returns the Pod's PID namespace: one for each container, unless they share one.
func pidMode(pod *corev1.Pod) runtimeapi.NamespaceMode {
	switch {
	case pod.Spec.HostPID:
		return runtimeapi.NamespaceMode_NODE
	case pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace:
		return runtimeapi.NamespaceMode_POD
	default:
		return runtimeapi.NamespaceMode_CONTAINER
	}
}

// namespaces returns the namespaces of the Pod's sandbox and containers. userns is nil for a Pod in the host's user
// namespace.
func namespaces(pod *corev1.Pod, userns *runtimeapi.UserNamespace) *runtimeapi.NamespaceOption {
	ipc := runtimeapi.NamespaceMode_POD
	if pod.Spec.HostIPC {
		ipc = runtimeapi.NamespaceMode_NODE
	}
	return &runtimeapi.NamespaceOption{Network: networkMode(pod), Pid: pidMode(pod), Ipc: ipc, UsernsOptions: userns}
}
