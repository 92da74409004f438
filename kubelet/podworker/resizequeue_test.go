package podworker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/config"
)

func isDeferred(s corev1.PodStatus) bool {
	c := findCondition(s, corev1.PodResizePending)
	return c != nil && c.Reason == corev1.PodReasonDeferred
}

// addDeferred adds a running Pod of 10m CPU whose resize to 50m is deferred.
func (f *fixture) addDeferred(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	f.t.Helper()
	p := sized("10m", "30Mi", append(change, func(p *corev1.Pod) { p.Name, p.UID = name, pod(name).UID })...)
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	p = resized(p, "50m", "30Mi")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	f.waitStatus(p.UID, "deferred", isDeferred)
	return p
}

func withPriority(value int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Priority = ptr.To(value) }
}

// TestDeferredResizesAreGrantedInOrder frees resources for one of many deferred resizes.
func TestDeferredResizesAreGrantedInOrder(t *testing.T) {
	f := newFixture(t)
	f.admitter.setMilliCPU(40)
	holder := sized("40m", "30Mi", func(p *corev1.Pod) { p.Name, p.UID = "holder", "uid-holder" })
	f.add(holder)
	f.waitStatus(holder.UID, "running", running)
	low := make([]*corev1.Pod, 4)
	for i := range low {
		low[i] = f.addDeferred(fmt.Sprint("low-", len(low)-i))
		f.clock.Step(time.Second)
	}
	high := f.addDeferred("high", withPriority(7))
	f.admitter.setMilliCPU(100)
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(holder, "10m", "30Mi")})
	f.waitStatus(high.UID, "resized", resizedTo(2, "50m"))
	for _, p := range low {
		s, _ := f.statuses.Get(p.UID)
		require.True(t, isDeferred(s), p.Name)
	}
	accepted := func() int { return f.metrics.withPrefix("accepted")["accepted pod_resized"] }
	f.waitFor("it is counted", func() bool { return accepted() > 0 }) // after the status
	require.Equal(t, 1, accepted())

	// Of equal ones the oldest is next.
	f.admitter.setMilliCPU(140)
	f.signals.Wake(low[3].UID)
	f.waitStatus(low[0].UID, "resized", resizedTo(2, "50m"))
	for _, p := range low[1:] {
		s, _ := f.statuses.Get(p.UID)
		require.True(t, isDeferred(s), p.Name)
	}
}

// TestTerminatingPodDoesNotWaitForResources has a Pod of a high priority that does not stop.
func TestTerminatingPodDoesNotWaitForResources(t *testing.T) {
	f := newFixture(t)
	f.admitter.setMilliCPU(70)
	holder := sized("40m", "30Mi", func(p *corev1.Pod) { p.Name, p.UID = "holder", "uid-holder" })
	f.add(holder)
	f.waitStatus(holder.UID, "running", running)
	low, high := f.addDeferred("low"), f.addDeferred("high", withPriority(7))
	release := f.runtime.Block("StopContainer")
	defer release()
	f.manager.HandlePod(config.Change{Op: config.Delete, Pod: deleted(high)})
	f.waitFor("it stops", func() bool { return f.runtime.Calls("StopContainer") > 0 })
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(holder, "10m", "30Mi")})
	f.waitStatus(low.UID, "resized", resizedTo(2, "50m"))
}

// TestDeferredResizesKeepTheirOrderAcrossARestart restarts the kubelet with two deferred resizes, of which the younger one
// is seen first: nothing is granted before all Pods are known.
func TestDeferredResizesKeepTheirOrderAcrossARestart(t *testing.T) {
	f := newFixture(t)
	f.admitter.setMilliCPU(30)
	first := f.addDeferred("z")
	f.clock.Step(time.Minute)
	second := f.addDeferred("a")
	f.stop()
	for _, p := range []*corev1.Pod{first, second} {
		p.Status, _ = f.statuses.Get(p.UID)
	}
	f.admitter.setMilliCPU(60)
	f.start()
	f.add(second)
	f.waitFor("the event", func() bool { return len(f.recorder.fields("ResizeDeferred")) == 3 })
	f.add(first)
	f.waitFor("the event", func() bool { return len(f.recorder.fields("ResizeDeferred")) == 4 })
	f.manager.SourcesReady()
	f.waitStatus(first.UID, "resized", resizedTo(2, "50m"))
	s, _ := f.statuses.Get(second.UID)
	require.True(t, isDeferred(s))
}
