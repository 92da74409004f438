package podworker_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/status"
)

func TestTheLastStatusDoesNotWaitForTheSandbox(t *testing.T) {
	w := newWorld(t)
	p := pod("a")
	w.add(p)
	w.eventually(p.UID, "running", running)
	release := w.runtime.Block("StopPodSandbox")
	defer release()
	p = deleted(p)
	w.manager.HandlePod(config.Change{Op: config.Delete, Pod: p})
	s := w.eventually(p.UID, "ended", func(s corev1.PodStatus) bool { return status.Terminal(s.Phase) })
	require.Equal(t, int32(143), s.ContainerStatuses[0].State.Terminated.ExitCode)
	require.True(t, w.volumes.has(p.UID), "the volumes wait for the sandbox")
	require.False(t, w.statuses.isFinished(p.UID), "and the object for both")
	release()
	w.become("finished", func() bool { return w.statuses.isFinished(p.UID) })
	require.False(t, w.volumes.has(p.UID))
}

// A sandbox waits for no answer of the runtime's where it is known that nothing is held of its Pod.
func TestNothingIsReadBeforeTheFirstSandbox(t *testing.T) {
	w := newWorld(t)
	w.become("listed", func() bool { return w.watcher.HoldsNothing("uid-a") })
	lists := w.runtime.Calls("ListPodSandbox")
	release := w.runtime.Block("RunPodSandbox")
	defer release()
	w.add(pod("a"))
	w.become("sandbox is being made", func() bool { return w.runtime.Calls("RunPodSandbox") == 1 })
	require.Equal(t, lists, w.runtime.Calls("ListPodSandbox"))
	release()
	w.eventually("uid-a", "running", running)
}
