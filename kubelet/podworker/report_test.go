package podworker_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/resources/rejection"
	"github.com/berth-dev/berth/kubelet/status"
)

func TestTheLastStatusDoesNotWaitForTheSandbox(t *testing.T) {
	f := newFixture(t)
	p := pod("a")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	release := f.runtime.Block("StopPodSandbox")
	defer release()
	p = deleted(p)
	f.manager.HandlePod(config.Change{Op: config.Delete, Pod: p})
	s := f.waitStatus(p.UID, "ended", func(s corev1.PodStatus) bool { return podutil.IsTerminal(&s) })
	require.Equal(t, int32(143), s.ContainerStatuses[0].State.Terminated.ExitCode)
	require.True(t, f.volumes.has(p.UID), "the volumes wait for the sandbox")
	require.False(t, f.statuses.isFinished(p.UID), "and the object for both")
	release()
	f.waitFor("finished", func() bool { return f.statuses.isFinished(p.UID) })
	require.False(t, f.volumes.has(p.UID))
}

// A sandbox does not wait for a read of the runtime if the runtime is known to have nothing of its Pod.
func TestNothingIsReadBeforeTheFirstSandbox(t *testing.T) {
	f := newFixture(t)
	f.waitFor("listed", func() bool { return f.watcher.KnownEmpty("uid-a") })
	lists := f.runtime.Calls("ListPodSandbox")
	release := f.runtime.Block("RunPodSandbox")
	defer release()
	f.add(pod("a"))
	f.waitFor("sandbox is being made", func() bool { return f.runtime.Calls("RunPodSandbox") == 1 })
	require.Equal(t, lists, f.runtime.Calls("ListPodSandbox"))
	release()
	f.waitStatus("uid-a", "running", running)
}

// A machine may go down between the write of a Pod's phase and the end of its containers, or another component may write the phase.
func TestContainersOfATerminalPodEndInItsStatus(t *testing.T) {
	status := func(state corev1.ContainerState) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Terminated", ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", State: state,
		}}}
	}
	for name, state := range map[string]corev1.ContainerState{
		"waiting": {Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
		"running": {Running: &corev1.ContainerStateRunning{}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.add(pod("a", func(p *corev1.Pod) { p.Status = status(state) }))
			s := f.waitStatus("uid-a", "the container has ended", func(s corev1.PodStatus) bool {
				return len(s.ContainerStatuses) == 1 && s.ContainerStatuses[0].State.Terminated != nil
			})
			end := s.ContainerStatuses[0].State.Terminated
			require.Equal(t, "ContainerStatusUnknown", end.Reason)
			require.Equal(t, int32(137), end.ExitCode)
			require.Equal(t, corev1.PodFailed, s.Phase)
			require.Equal(t, "Terminated", s.Reason)
		})
	}
	t.Run("complete", func(t *testing.T) {
		f := newFixture(t)
		f.add(deleted(pod("a", func(p *corev1.Pod) {
			p.Status = status(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1}})
		})))
		f.waitFor("finished", func() bool { return f.statuses.isFinished("uid-a") })
		_, written := f.statuses.Get("uid-a")
		require.False(t, written, "an earlier process wrote its last status")
	})
}

// reads is how often the runtime was asked for all that it holds of a Pod.
func (f *fixture) reads() int {
	return f.runtime.Calls("ListPodSandbox") + f.runtime.Calls("PodSandboxStatus") + f.runtime.Calls("ContainerStatus")
}

// After StopPodSandbox has returned, the runtime is not read again before the object is deleted.
func TestNothingIsReadAfterTheSandboxWasStopped(t *testing.T) {
	f := newFixture(t)
	var reads atomic.Int64 // when the deletion of its object was first requested: that may be repeated
	f.statuses.atFinish = func() { reads.CompareAndSwap(0, int64(f.reads())) }
	p := pod("a")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	release := f.runtime.Block("StopPodSandbox")
	defer release()
	p = deleted(p)
	f.manager.HandlePod(config.Change{Op: config.Delete, Pod: p})
	f.waitFor("being stopped", func() bool { return f.runtime.Calls("StopPodSandbox") == 1 })
	f.waitStatus(p.UID, "ended", func(s corev1.PodStatus) bool { return podutil.IsTerminal(&s) })
	before := f.reads()
	f.signals.RuntimeChanged(p.UID) // an event that comes late
	release()
	f.waitFor("finished", func() bool { return f.statuses.isFinished(p.UID) })
	require.EqualValues(t, before, reads.Load())
	require.False(t, f.volumes.has(p.UID))

	f.manager.HandlePod(config.Change{Op: config.Remove, Pod: p})
	f.waitFor("gone", func() bool { return !f.manager.Has(p.UID) })
	boxes, containers := f.runtime.Counts()
	require.Zero(t, boxes+containers)
}

// After a stop that failed the Pod is read, and stopped once more, before its volumes are unmounted and its object is
// deleted.
func TestThePodIsReadAfterItsSandboxDidNotStop(t *testing.T) {
	f := newFixture(t)
	p := pod("a")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	release := f.runtime.Block("StopPodSandbox")
	defer release()
	f.runtime.FailNext("StopPodSandbox", errors.New("its network does not go"))
	f.manager.HandlePod(config.Change{Op: config.Delete, Pod: deleted(p)})
	f.waitFor("being stopped", func() bool { return f.runtime.Calls("StopPodSandbox") == 1 })
	f.waitStatus(p.UID, "ended", func(s corev1.PodStatus) bool { return podutil.IsTerminal(&s) })
	reads := f.reads()
	release()
	f.waitFor("read", func() bool { return f.reads() > reads })
	require.True(t, f.volumes.has(p.UID))
	f.waitFor("finished", func() bool { f.clock.Step(time.Second); return f.statuses.isFinished(p.UID) })
	require.Equal(t, 2, f.runtime.Calls("StopPodSandbox"))
}

// TestAPodWhoseDevicesAreGoneFails is rejected by what its resources are prepared by, before it has a sandbox.
func TestAPodWhoseDevicesAreGoneFails(t *testing.T) {
	f := newFixture(t)
	f.builder.resourcesErr = &rejection.Error{Reason: rejection.Unexpected, Message: "no device"}
	p := sized("20m", "30Mi")
	started := metav1.NewTime(f.clock.Now())
	p.Status.StartTime = &started // an earlier process has admitted it
	f.add(p)
	f.waitStatus(p.UID, "failed", func(s corev1.PodStatus) bool {
		return s.Phase == corev1.PodFailed && s.Reason == rejection.Unexpected && s.Message == "Pod was rejected: no device"
	})
	boxes, err := f.runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	require.NoError(t, err)
	require.Empty(t, boxes.Items)
	require.True(t, f.recorder.hasPrefix("Warning UnexpectedAdmissionError Pod was rejected: no device"))
}

// TestPodsOfAnEarlierProcessAreReadmitted: the node is asked only whether it can go on running them.
func TestPodsOfAnEarlierProcessAreReadmitted(t *testing.T) {
	f := newFixture(t)
	f.admitter.rejection = &status.Failure{Reason: "OutOfcpu", Message: "too little is free"}
	started := metav1.NewTime(f.clock.Now())
	kept := pod("kept")
	kept.Status.StartTime = &started
	f.add(kept)
	f.waitStatus(kept.UID, "running", running)
	f.admitter.readmission = &status.Failure{Reason: rejection.Unexpected, Message: "no CPUs"}
	lost, ending := pod("lost"), deleted(pod("ending"))
	lost.Status.StartTime, ending.Status.StartTime = &started, &started
	f.add(lost)
	f.waitStatus(lost.UID, "failed", func(s corev1.PodStatus) bool {
		return s.Phase == corev1.PodFailed && s.Reason == rejection.Unexpected && s.Message == "no CPUs"
	})
	f.add(ending)
	f.waitFor("the end of a Pod that ends anyway", func() bool { return f.statuses.isFinished(ending.UID) })
	require.Equal(t, []string{"uid-kept", "uid-lost", "uid-ending"}, f.admitter.readmitted)
	require.Empty(t, f.admitter.calls)
}
