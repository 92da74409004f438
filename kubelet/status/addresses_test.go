package status_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/status"
)

// The network plugin may give the addresses of a sandbox that is gone to another Pod, as after a reboot.
func TestAddressesOfALostSandboxAreNotReported(t *testing.T) {
	in := status.Input{
		Pod: pod(corev1.RestartPolicyAlways, "a"), Runtime: held(exited("a", 255, 0)), Now: now,
		Old: corev1.PodStatus{PodIP: "10.1.0.2", PodIPs: []corev1.PodIP{{IP: "10.1.0.2"}}},
	}
	in.Runtime.Sandboxes, in.Runtime.IPs = nil, nil
	got := status.Compute(in)
	require.Empty(t, got.PodIP)
	require.Empty(t, got.PodIPs)

	in.Ended = true
	require.Equal(t, "10.1.0.2", status.Compute(in).PodIP, "those that an ended Pod had stay")
	in.Ended, in.Runtime = false, nil
	require.Equal(t, "10.1.0.2", status.Compute(in).PodIP, "the runtime was not read yet")
}

func TestPodOfANodeThatGetsASecondAddress(t *testing.T) {
	p := pod(corev1.RestartPolicyAlways, "a")
	p.Spec.HostNetwork = true
	in := status.Input{Pod: p, Runtime: held(running("a", 0)), HostIPs: []string{"192.0.2.1"}, Now: now}
	in.Old = status.Compute(in)
	require.Equal(t, []corev1.PodIP{{IP: "192.0.2.1"}}, in.Old.PodIPs)
	in.HostIPs = []string{"192.0.2.7", "2001:db8::1"}
	got := status.Compute(in)
	require.Equal(t, "192.0.2.1", got.PodIP, "the first one stays for the Pod's life")
	require.Equal(t, []corev1.PodIP{{IP: "192.0.2.1"}, {IP: "2001:db8::1"}}, got.PodIPs)
	in.Old, in.HostIPs = got, []string{"192.0.2.7", "192.0.2.8"}
	require.Equal(t, got.PodIPs, status.Compute(in).PodIPs)
}
