package kuberuntime

import (
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// networkMode is the network namespace the Pod asks for.
func networkMode(pod *corev1.Pod) runtimeapi.NamespaceMode {
	if pod.Spec.HostNetwork {
		return runtimeapi.NamespaceMode_NODE
	}
	return runtimeapi.NamespaceMode_POD
}

// pidMode is the PID namespace the Pod asks for: one for each container, unless it shares.
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

// namespaces are the namespaces of the Pod's sandbox and containers. userns is nil for a Pod that lives in the
// host's user namespace.
func namespaces(pod *corev1.Pod, userns *runtimeapi.UserNamespace) *runtimeapi.NamespaceOption {
	ipc := runtimeapi.NamespaceMode_POD
	if pod.Spec.HostIPC {
		ipc = runtimeapi.NamespaceMode_NODE
	}
	return &runtimeapi.NamespaceOption{Network: networkMode(pod), Pid: pidMode(pod), Ipc: ipc, UsernsOptions: userns}
}
