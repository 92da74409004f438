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

// A Pod's start and end ask the runtime for no more than what has changed.
func TestStartAndEndReadWhatTheyChange(t *testing.T) {
	w := newWorld(t)
	w.become("listed", func() bool { return w.runtime.Calls("ListPodSandbox") == 1 && w.runtime.Calls("ListContainers") == 1 })
	lists := func() int { return w.runtime.Calls("ListPodSandbox") }
	w.add(pod("a"))
	w.eventually("uid-a", "running", running)
	// An event that overtakes the answer to the call that it tells of costs a whole read, which is not counted here.
	require.Positive(t, w.runtime.Calls("PodSandboxStatus"))
	require.Positive(t, w.runtime.Calls("ContainerStatus"))
	require.LessOrEqual(t, lists(), 3)

	before := lists()
	w.manager.HandlePod(config.Change{Op: config.Update, Pod: deleted(pod("a"))})
	w.become("finished", func() bool { return w.statuses.isFinished("uid-a") })
	require.LessOrEqual(t, lists()-before, 2, "how the container ended, and nothing after the sandbox's end")
}
