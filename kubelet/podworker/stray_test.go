package podworker_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
)

// TestSandboxThatComesLateDisturbsNobody has the runtime make a second sandbox beside the one in which the Pod runs, as
// it does when a call that was given up succeeds after all: it goes, and what runs does not notice.
func TestSandboxThatComesLateDisturbsNobody(t *testing.T) {
	w := newWorld(t)
	p := pod("a")
	w.add(p)
	w.eventually(p.UID, "running", running)
	first, err := w.runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	require.NoError(t, err)
	require.Len(t, first.Items, 1)
	// The Pod goes on in another sandbox, and the first one is forgotten.
	_, err = w.runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: first.Items[0].Id})
	require.NoError(t, err)
	w.eventually(p.UID, "restarted", restarted(1))
	w.become("it runs again", func() bool { return w.runtime.Running()["main"] == 1 })
	_, err = w.runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: first.Items[0].Id})
	require.NoError(t, err)
	w.untilQuiet()
	stops := w.runtime.Calls("StopPodSandbox")

	late, err := w.runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: p.Name, Namespace: p.Namespace, Uid: string(p.UID)},
		Labels:   map[string]string{container.PodUIDLabel: string(p.UID)},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}})
	require.NoError(t, err)
	w.become("it is taken away", func() bool {
		left, err := w.runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		require.NoError(t, err)
		return len(left.Items) == 1 && left.Items[0].Id != late.PodSandboxId
	})
	require.Equal(t, stops+1, w.runtime.Calls("StopPodSandbox"), "it alone is stopped, so that its network goes in order")
	require.Zero(t, w.runtime.Calls("StopContainer"))
	require.Equal(t, 2, w.runtime.Calls("StartContainer"), "once in each of the pod's own sandboxes")
	w.eventually(p.UID, "running as before", func(s corev1.PodStatus) bool { return restarted(1)(s) && running(s) })
}
