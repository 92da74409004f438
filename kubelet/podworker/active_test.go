package podworker_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/config"
)

// TestForciblyDeletedPodsDoNotCount deletes a Pod so that the API has it no longer while its container still stops.
func TestForciblyDeletedPodsDoNotCount(t *testing.T) {
	f := newFixture(t)
	p := pod("a")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	release := f.runtime.Block("StopContainer")
	defer release()
	f.manager.HandlePod(config.Change{Op: config.Delete, Pod: deleted(p)})
	f.waitFor("its container stops", func() bool { return f.runtime.Calls("StopContainer") == 1 })
	others := func() int {
		f.admitter.mu.Lock()
		defer f.admitter.mu.Unlock()
		return len(f.admitter.others)
	}
	f.add(pod("b"))
	require.Equal(t, 1, others(), "a deleted Pod counts until it has ended")
	f.manager.HandlePod(config.Change{Op: config.Remove, Pod: deleted(p)})
	f.add(pod("c"))
	require.Equal(t, 1, others(), "only b")
	require.True(t, f.manager.Has(p.UID), "its end is waited for")
	release()
	f.waitFor("gone", func() bool { return !f.manager.Has(p.UID) })
}

// TestPodsThatHaveEndedDoNotCount: the API knows that the Pod has ended, and the scheduler gives its resources to others, while its sandbox
// still stops.
func TestPodsThatHaveEndedDoNotCount(t *testing.T) {
	f := newFixture(t)
	p := pod("a", func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	release := f.runtime.Block("StopPodSandbox")
	defer release()
	f.runtime.Exit("main", 0)
	ended := f.waitStatus(p.UID, "ended", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodSucceeded })
	others := func() int {
		f.admitter.mu.Lock()
		defer f.admitter.mu.Unlock()
		return len(f.admitter.others)
	}
	f.add(pod("b"))
	require.Zero(t, others())
	release()

	f.stop()
	f.start()
	p.Status = ended
	f.add(p)
	f.add(pod("c"))
	require.Zero(t, others(), "nor after a restart")
}
