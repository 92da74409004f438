package podworker_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// TestStopPodsKeepsTheOrder stops a Pod with a sidecar after its manager has returned: the preStop hook runs, the sidecar
// ends last, and the API server gets no status.
func TestStopPodsKeepsTheOrder(t *testing.T) {
	f := newFixture(t)
	p := pod("web", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "proxy", Image: "app:1",
			RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{}}
	})
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	f.stop()
	before, _ := f.statuses.Get(p.UID)
	f.hooks.fail(nil) // a run takes it

	release := f.runtime.Block("StopContainer")
	done := make(chan error, 1)
	go func() { done <- f.manager.StopPods(t.Context(), []types.UID{p.UID}, time.Minute, time.Minute) }()
	f.waitFor("the first stop", func() bool { return f.runtime.Calls("StopContainer") == 1 })
	require.Equal(t, map[string]int{"main": 1, "proxy": 1}, f.runtime.Running())
	require.Zero(t, f.runtime.Calls("StopPodSandbox"))
	release()
	require.NoError(t, <-done)
	require.Equal(t, 2, f.runtime.Calls("StopContainer"))
	require.Equal(t, 1, f.runtime.Calls("StopPodSandbox"))
	require.Empty(t, f.runtime.Running())
	require.Empty(t, f.hooks.failures)
	after, _ := f.statuses.Get(p.UID)
	require.Equal(t, before, after)
	sandboxes, containers := f.runtime.Counts()
	require.Equal(t, []int{1, 2}, []int{sandboxes, containers}, "nothing is removed")
}

// TestStopPodsStopsWhatTheRuntimeHolds stops a Pod that the manager does not know.
func TestStopPodsStopsWhatTheRuntimeHolds(t *testing.T) {
	f := newFixture(t)
	p := pod("web")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	f.stop()
	f.start()
	f.stop()
	require.NoError(t, f.manager.StopPods(t.Context(), []types.UID{p.UID}, 0, 0))
	require.Empty(t, f.runtime.Running())
}

// TestStopPodsEndsCriticalPodsLast stops a critical Pod when the other one has ended.
func TestStopPodsEndsCriticalPodsLast(t *testing.T) {
	f := newFixture(t)
	ordinary, critical := pod("web"), pod("driver", func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](2_000_001_000) })
	for _, p := range []*corev1.Pod{critical, ordinary} {
		f.add(p)
		f.waitStatus(p.UID, "running", running)
	}
	f.stop()
	release := f.runtime.Block("StopPodSandbox")
	done := make(chan error, 1)
	go func() {
		done <- f.manager.StopPods(t.Context(), []types.UID{critical.UID, ordinary.UID}, time.Minute, time.Minute)
	}()
	f.waitFor("the stop of the ordinary Pod", func() bool { return f.runtime.Calls("StopPodSandbox") == 1 })
	require.Equal(t, 1, f.runtime.Calls("StopContainer"), "the critical one runs until the other has ended")
	release()
	require.NoError(t, <-done)
	require.Equal(t, 2, f.runtime.Calls("StopContainer"))
	require.Empty(t, f.runtime.Running())
}

// TestReady waits until the sources and the runtime have both delivered their Pods.
func TestReady(t *testing.T) {
	f := newFixture(t)
	f.waitFor("the runtime to be listed", func() bool { return f.runtime.Calls("ListPodSandbox") > 0 })
	select {
	case <-f.manager.Ready():
		require.Fail(t, "the sources are not ready")
	default:
	}
	f.manager.SourcesReady()
	<-f.manager.Ready()
}
