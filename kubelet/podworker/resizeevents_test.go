package podworker_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/status"
)

// TestEventsOfAPendingResize: there is one for each generation of the spec, not for each change of what other Pods use.
func TestEventsOfAPendingResize(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "30Mi", func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "proxy", Image: "app:1", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
	})
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	pending := func(p *corev1.Pod, message string) {
		t.Helper()
		f.admitter.setResizeFailure(&status.Failure{Reason: corev1.PodReasonDeferred, Message: message})
		f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
		f.waitStatus(p.UID, "pending: "+message, func(s corev1.PodStatus) bool {
			c := findCondition(s, corev1.PodResizePending)
			return c != nil && c.Message == message && c.ObservedGeneration == p.Generation
		})
	}
	first := resized(p, "40m", "60Mi")
	pending(first, "used: 1")
	pending(first, "used: 2")
	second := resized(first, "50m", "60Mi")
	pending(second, "used: 2")
	require.Len(t, f.recorder.fields("ResizeDeferred"), 2)
	require.True(t, f.recorder.hasPrefix(`Warning ResizeDeferred Pod resize Deferred: {"initContainers":[{"name":"proxy","resources":{}}],`+
		`"containers":[{"name":"main","resources":{"limits":{"cpu":"50m","memory":"60Mi"},"requests":{"cpu":"50m","memory":"60Mi"}}}],`+
		`"generation":3,"error":"used: 2"}`))
}
