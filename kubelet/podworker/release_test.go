package podworker_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/podworker"
)

// TestReleasedWhenNoVolumeIsInUse kills a Pod: the caller learns when its containers have ended, and when its volumes are unmounted.
func TestReleasedWhenNoVolumeIsInUse(t *testing.T) {
	f := newFixture(t)
	p := pod("a")
	f.add(p)
	f.waitStatus(p.UID, "runs", running)
	done, released := make(chan error, 1), make(chan bool, 1)
	require.True(t, f.manager.Kill(p.UID, podworker.KillRequest{
		Status: func(*corev1.Pod, *container.PodStatus) corev1.PodStatus {
			return corev1.PodStatus{Reason: "Terminated"}
		},
		Done: func(err error) { done <- err },
		Released: func() {
			f.volumes.mu.Lock()
			defer f.volumes.mu.Unlock()
			released <- !f.volumes.mounted[p.UID]
		},
	}))
	require.NoError(t, <-done)
	require.True(t, <-released, "the volumes are unmounted")
	require.Equal(t, "Terminated", f.waitStatus(p.UID, "failed", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodFailed }).Reason)

	again := make(chan bool, 1)
	require.True(t, f.manager.Kill(p.UID, podworker.KillRequest{Released: func() { again <- true }}))
	require.True(t, <-again, "of a Pod that has ended")
}
