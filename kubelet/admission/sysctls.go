package admission

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/status"
)

const reasonSysctl = "SysctlForbidden"

// safeSysctls are namespaced, and a Pod's value does not affect other Pods. The list is that of Kubernetes.
var safeSysctls = map[string]bool{
	"kernel.shm_rmid_forced":              true,
	"net.ipv4.ip_local_port_range":        true,
	"net.ipv4.tcp_syncookies":             true,
	"net.ipv4.ping_group_range":           true,
	"net.ipv4.ip_unprivileged_port_start": true,
	"net.ipv4.ip_local_reserved_ports":    true,
	"net.ipv4.tcp_keepalive_time":         true,
	"net.ipv4.tcp_fin_timeout":            true,
	"net.ipv4.tcp_keepalive_intvl":        true,
	"net.ipv4.tcp_keepalive_probes":       true,
	"net.ipv4.tcp_rmem":                   true,
	"net.ipv4.tcp_wmem":                   true,
}

// ipcSysctls are the prefixes of the sysctls of the IPC namespace.
var ipcSysctls = []string{"kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."}

// checkSysctls rejects a Pod that sets a sysctl that the node does not allow, or one of a namespace that it shares with the
// node. allowed lists names beside the safe ones; a name that ends in "*" allows all names with that prefix.
func checkSysctls(pod *corev1.Pod, allowed []string) *status.Failure {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, sysctl := range pod.Spec.SecurityContext.Sysctls {
		name := kuberuntime.SysctlName(sysctl.Name)
		switch {
		case pod.Spec.HostNetwork && strings.HasPrefix(name, "net."):
			return reject(reasonSysctl, "forbidden sysctl: %q not allowed with host net enabled", sysctl.Name)
		case pod.Spec.HostIPC && hasAnyPrefix(name, ipcSysctls):
			return reject(reasonSysctl, "forbidden sysctl: %q not allowed with host ipc enabled", sysctl.Name)
		case !safeSysctls[name] && !matches(name, allowed):
			return reject(reasonSysctl, "forbidden sysctl: %q not allowlisted", sysctl.Name)
		}
	}
	return nil
}

func hasAnyPrefix(name string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// matches reports whether the name is one of the patterns.
func matches(name string, patterns []string) bool {
	for _, pattern := range patterns {
		pattern = kuberuntime.SysctlName(pattern)
		prefix, open := strings.CutSuffix(pattern, "*")
		if name == pattern || open && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
