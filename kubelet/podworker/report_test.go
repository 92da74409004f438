package podworker_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/config"
)

func TestTheLastStatusDoesNotWaitForTheSandbox(t *testing.T) {
	w := newFixture(t)
	p := pod("a")
	w.add(p)
	w.waitStatus(p.UID, "running", running)
	release := w.runtime.Block("StopPodSandbox")
	defer release()
	p = deleted(p)
	w.manager.HandlePod(config.Change{Op: config.Delete, Pod: p})
	s := w.waitStatus(p.UID, "ended", func(s corev1.PodStatus) bool { return podutil.IsTerminal(&s) })
	require.Equal(t, int32(143), s.ContainerStatuses[0].State.Terminated.ExitCode)
	require.True(t, w.volumes.has(p.UID), "the volumes wait for the sandbox")
	require.False(t, w.statuses.isFinished(p.UID), "and the object for both")
	release()
	w.waitFor("finished", func() bool { return w.statuses.isFinished(p.UID) })
	require.False(t, w.volumes.has(p.UID))
}

// A sandbox waits for no answer of the runtime's where it is known that nothing is held of its Pod.
func TestNothingIsReadBeforeTheFirstSandbox(t *testing.T) {
	w := newFixture(t)
	w.waitFor("listed", func() bool { return w.watcher.KnownEmpty("uid-a") })
	lists := w.runtime.Calls("ListPodSandbox")
	release := w.runtime.Block("RunPodSandbox")
	defer release()
	w.add(pod("a"))
	w.waitFor("sandbox is being made", func() bool { return w.runtime.Calls("RunPodSandbox") == 1 })
	require.Equal(t, lists, w.runtime.Calls("ListPodSandbox"))
	release()
	w.waitStatus("uid-a", "running", running)
}

// reads is how often the runtime was asked for all that it holds of a Pod.
func (w *fixture) reads() int {
	return w.runtime.Calls("ListPodSandbox") + w.runtime.Calls("PodSandboxStatus") + w.runtime.Calls("ContainerStatus")
}

// The way from the sandbox's end to the object's is short: StopPodSandbox has said that it is done, and nothing that the
// runtime could tell matters any more.
func TestNothingIsReadAfterTheSandboxWasStopped(t *testing.T) {
	w := newFixture(t)
	var reads atomic.Int64 // when its object was told to go for the first time: it may be told again
	w.statuses.atFinish = func() { reads.CompareAndSwap(0, int64(w.reads())) }
	p := pod("a")
	w.add(p)
	w.waitStatus(p.UID, "running", running)
	release := w.runtime.Block("StopPodSandbox")
	defer release()
	p = deleted(p)
	w.manager.HandlePod(config.Change{Op: config.Delete, Pod: p})
	w.waitFor("being stopped", func() bool { return w.runtime.Calls("StopPodSandbox") == 1 })
	w.waitStatus(p.UID, "ended", func(s corev1.PodStatus) bool { return podutil.IsTerminal(&s) })
	before := w.reads()
	w.manager.RuntimeChanged(p.UID) // an event that comes late
	release()
	w.waitFor("finished", func() bool { return w.statuses.isFinished(p.UID) })
	require.EqualValues(t, before, reads.Load())
	require.False(t, w.volumes.has(p.UID))

	w.manager.HandlePod(config.Change{Op: config.Remove, Pod: p})
	w.waitFor("gone", func() bool { return !w.manager.Has(p.UID) })
	boxes, containers := w.runtime.Counts()
	require.Zero(t, boxes+containers)
}

// A stop that failed says nothing: the Pod is read, and stopped once more, before its volumes and its object go.
func TestThePodIsReadAfterItsSandboxDidNotStop(t *testing.T) {
	w := newFixture(t)
	p := pod("a")
	w.add(p)
	w.waitStatus(p.UID, "running", running)
	release := w.runtime.Block("StopPodSandbox")
	defer release()
	w.runtime.FailNext("StopPodSandbox", errors.New("its network does not go"))
	w.manager.HandlePod(config.Change{Op: config.Delete, Pod: deleted(p)})
	w.waitFor("being stopped", func() bool { return w.runtime.Calls("StopPodSandbox") == 1 })
	w.waitStatus(p.UID, "ended", func(s corev1.PodStatus) bool { return podutil.IsTerminal(&s) })
	reads := w.reads()
	release()
	w.waitFor("read", func() bool { return w.reads() > reads })
	require.True(t, w.volumes.has(p.UID))
	w.waitFor("finished", func() bool { w.clock.Step(time.Second); return w.statuses.isFinished(p.UID) })
	require.Equal(t, 2, w.runtime.Calls("StopPodSandbox"))
}
