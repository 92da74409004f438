package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

func TestSysctls(t *testing.T) {
	for name, c := range map[string]struct {
		sysctl  string
		change  func(*corev1.Pod)
		allowed []string
		says    string // empty if it is admitted
	}{
		"safe":                      {sysctl: "kernel.shm_rmid_forced"},
		"safe, with slashes":        {sysctl: "net/ipv4/tcp_syncookies"},
		"unsafe":                    {sysctl: "kernel.msgmax", says: `forbidden sysctl: "kernel.msgmax" not allowlisted`},
		"unsafe, allowed":           {sysctl: "kernel.msgmax", allowed: []string{"kernel.msg*"}},
		"unsafe, another allowed":   {sysctl: "kernel.sem", allowed: []string{"kernel.msg*", "kernel.se"}, says: "not allowlisted"},
		"safe, of the node network": {sysctl: "net.ipv4.tcp_syncookies", change: hostNetwork, says: "host net"},
		"safe, of the node's IPC": {
			sysctl: "kernel.shm_rmid_forced", change: func(p *corev1.Pod) { p.Spec.HostIPC = true }, says: "host ipc"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: c.sysctl, Value: "1"}}}
			if c.change != nil {
				c.change(pod)
			}
			failure := checkSysctls(pod, c.allowed)
			if c.says == "" {
				require.Nil(t, failure)
				return
			}
			require.Equal(t, "SysctlForbidden", failure.Reason)
			require.Contains(t, failure.Message, c.says)
		})
	}
	require.Nil(t, checkSysctls(&corev1.Pod{}, nil))
}

func hostNetwork(p *corev1.Pod) { p.Spec.HostNetwork = true }
