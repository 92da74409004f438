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
	w := newFixture(t)
	p := pod("web", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "proxy", Image: "app:1",
			RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
		p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{}}
	})
	w.add(p)
	w.waitStatus(p.UID, "running", running)
	w.stop()
	before, _ := w.statuses.Get(p.UID)
	w.hooks.fail(nil) // a run takes it

	release := w.runtime.Block("StopContainer")
	done := make(chan error, 1)
	go func() { done <- w.manager.StopPods(t.Context(), []types.UID{p.UID}, time.Minute) }()
	w.waitFor("the first stop", func() bool { return w.runtime.Calls("StopContainer") == 1 })
	require.Equal(t, map[string]int{"main": 1, "proxy": 1}, w.runtime.Running())
	require.Zero(t, w.runtime.Calls("StopPodSandbox"))
	release()
	require.NoError(t, <-done)
	require.Equal(t, 2, w.runtime.Calls("StopContainer"))
	require.Equal(t, 1, w.runtime.Calls("StopPodSandbox"))
	require.Empty(t, w.runtime.Running())
	require.Empty(t, w.hooks.failures)
	after, _ := w.statuses.Get(p.UID)
	require.Equal(t, before, after)
	sandboxes, containers := w.runtime.Counts()
	require.Equal(t, []int{1, 2}, []int{sandboxes, containers}, "nothing is removed")
}

// TestStopPodsStopsWhatTheRuntimeHolds stops a Pod that the manager does not know.
func TestStopPodsStopsWhatTheRuntimeHolds(t *testing.T) {
	w := newFixture(t)
	p := pod("web")
	w.add(p)
	w.waitStatus(p.UID, "running", running)
	w.stop()
	w.start()
	w.stop()
	require.NoError(t, w.manager.StopPods(t.Context(), []types.UID{p.UID}, 0))
	require.Empty(t, w.runtime.Running())
}

// TestReady waits until the sources and the runtime have both delivered their Pods.
func TestReady(t *testing.T) {
	w := newFixture(t)
	w.waitFor("the runtime to be listed", func() bool { return w.runtime.Calls("ListPodSandbox") > 0 })
	select {
	case <-w.manager.Ready():
		require.Fail(t, "the sources are not ready")
	default:
	}
	w.manager.SourcesReady()
	<-w.manager.Ready()
}
