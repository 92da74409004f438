package podworker_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/status"
)

// TestEvictionEndsWithWhatItFrees evicts a Pod for the sake of the disk. It is reported when its containers are removed, and the
// Pod keeps their statuses.
func TestEvictionEndsWithWhatItFrees(t *testing.T) {
	f := newFixture(t)
	p, other := pod("a"), pod("b")
	f.add(p)
	f.add(other)
	f.waitStatus(p.UID, "running", running)
	f.waitStatus(other.UID, "running", running)
	require.Len(t, f.manager.ActivePods(), 2)
	release := f.runtime.Block("RemoveContainer")
	defer release()
	gone := make(chan struct{})
	grace := int64(1)
	require.True(t, f.manager.EvictThen(p.UID, status.Failure{Reason: "Evicted", Message: "disk", Disruption: true, Discard: true}, &grace,
		func() { close(gone) }))
	require.False(t, f.manager.EvictThen("missing", status.Failure{}, nil, func() { t.Error("it was called") }))
	f.waitFor("its container is about to be removed", func() bool { return f.runtime.Calls("RemoveContainer") == 1 })
	select {
	case <-gone:
		t.Fatal("the container is still there")
	default:
	}
	release()
	<-gone
	again := make(chan struct{})
	require.True(t, f.manager.EvictThen(p.UID, status.Failure{Reason: "Evicted", Message: "later"}, nil, func() { close(again) }))
	<-again
	s := f.waitStatus(p.UID, "failed", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodFailed })
	require.Equal(t, "disk", s.Message)
	require.NotNil(t, podutil.FindCondition(&s, corev1.DisruptionTarget))
	require.NotNil(t, s.ContainerStatuses[0].State.Terminated)
	require.NotEmpty(t, s.ContainerStatuses[0].ContainerID, "although the container does not exist any more")
	require.Len(t, f.manager.ActivePods(), 1)
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: deleted(p)})
	f.manager.HandlePod(config.Change{Op: config.Remove, Pod: deleted(p)})
	f.waitFor("gone", func() bool { return !f.manager.Has(p.UID) })
}

// TestContainersOfEndedPodsAreDiscarded has one Pod that has succeeded and one that runs.
func TestContainersOfEndedPodsAreDiscarded(t *testing.T) {
	f := newFixture(t)
	ended := pod("a", func(p *corev1.Pod) {
		p.Spec.RestartPolicy, p.Spec.Containers[0].Name = corev1.RestartPolicyNever, "ends"
	})
	f.add(ended)
	f.add(pod("b"))
	f.waitStatus(ended.UID, "running", running)
	f.waitStatus("uid-b", "running", running)
	f.runtime.Exit("ends", 0)
	f.waitStatus(ended.UID, "succeeded", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodSucceeded })
	require.Len(t, f.manager.ActivePods(), 1)
	f.waitFor("its sandbox has stopped, and its container is removed", func() bool {
		require.NoError(t, f.manager.DiscardEnded(t.Context()))
		return f.runtime.Calls("RemoveContainer") == 1
	})
	require.NoError(t, f.manager.DiscardEnded(t.Context()), "again")
	require.Equal(t, 1, f.runtime.Running()["main"])
	s := f.waitStatus(ended.UID, "succeeded", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodSucceeded })
	require.Empty(t, s.Reason)
	require.Zero(t, s.ContainerStatuses[0].State.Terminated.ExitCode)
}
