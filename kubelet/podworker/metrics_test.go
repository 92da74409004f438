package podworker_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/status"
)

// countingMetrics notes how often the workers told of what.
type countingMetrics struct {
	mu sync.Mutex
	by map[string]int
}

var _ podworker.Metrics = (*countingMetrics)(nil)

func (c *countingMetrics) count(words ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by[strings.TrimSpace(fmt.Sprintln(words...))]++
}

// withPrefix is what was told in words that begin so.
func (c *countingMetrics) withPrefix(beginning string) map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[string]int{}
	for words, times := range c.by {
		if strings.HasPrefix(words, beginning) {
			found[words] = times
		}
	}
	return found
}

func (c *countingMetrics) SandboxStarted(bool, error)                             {}
func (c *countingMetrics) ContainerStarted(podutil.Kind, string, error)           {}
func (c *countingMetrics) ContainerEnded(podutil.Kind, int32, string)             {}
func (c *countingMetrics) PodRunning(time.Duration, time.Duration, time.Duration) {}
func (c *countingMetrics) WorkerStarted(time.Duration)                            {}
func (c *countingMetrics) SyncDuration(string, time.Duration)                     {}
func (c *countingMetrics) OrphanedPod()                                           {}
func (c *countingMetrics) ResizeInfeasible(detail string)                         { c.count("infeasible", detail) }
func (c *countingMetrics) Evicted(signal string)                                  { c.count("evicted", signal) }
func (c *countingMetrics) Restarted(static bool)                                  { c.count("restarted", static) }
func (c *countingMetrics) ResizeRequested(what, requirement, operation string) {
	c.count("asked", what, requirement, operation)
}
func (c *countingMetrics) ResizeAccepted(trigger string)           { c.count("accepted", trigger) }
func (c *countingMetrics) ResizeFinished(_ time.Duration, ok bool) { c.count("resized", ok) }

// TestResizeRequestsAreCounted changes each amount in each way.
func TestResizeRequestsAreCounted(t *testing.T) {
	w := newFixture(t)
	p := sized("20m", "30Mi")
	w.add(p)
	w.waitStatus(p.UID, "running", running)
	update := func(cpu, memory string, change func(r *corev1.ResourceRequirements)) {
		p = resized(p, cpu, memory)
		change(&p.Spec.Containers[0].Resources)
		w.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	}
	update("40m", "20Mi", func(r *corev1.ResourceRequirements) {
		r.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("40m")}
	})
	update("40m", "20Mi", func(r *corev1.ResourceRequirements) { r.Limits = nil })
	w.manager.HandlePod(config.Change{Op: config.Reconcile, Pod: p.DeepCopy()})
	update("40m", "20Mi", func(r *corev1.ResourceRequirements) { r.Limits = nil })
	w.waitFor("all are taken", func() bool { return len(w.metrics.withPrefix("asked")) == 7 })
	require.Equal(t, map[string]int{
		"asked cpu requests increase": 1, "asked memory requests remove": 1, "asked cpu limits increase": 1,
		"asked memory limits decrease": 1,
		"asked cpu limits remove":      1, "asked memory limits remove": 1, "asked memory requests add": 1,
	}, w.metrics.withPrefix("asked"))
}

// TestDeferredResourcesThatAreGrantedAreCounted has wishes wait for each thing that may free what they need.
func TestDeferredResourcesThatAreGrantedAreCounted(t *testing.T) {
	for trigger, free := range map[string]func(w *fixture, p, other *corev1.Pod){
		"pod_terminated": func(w *fixture, _, other *corev1.Pod) {
			w.manager.Evict(other.UID, status.Failure{Reason: "Evicted"}, nil)
		},
		"pod_updated": func(w *fixture, p, _ *corev1.Pod) {
			w.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(p, "30m", "30Mi")})
		},
		"pod_resized": func(w *fixture, _, other *corev1.Pod) {
			w.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(other, "10m", "30Mi")})
		},
		"periodic_retry": func(w *fixture, p, _ *corev1.Pod) { w.manager.RuntimeChanged(p.UID) },
		"pods_added": func(w *fixture, p, _ *corev1.Pod) {
			w.stop()
			p = p.DeepCopy()
			p.Status, _ = w.statuses.Get(p.UID)
			w.start()
			w.add(p)
		},
	} {
		t.Run(trigger, func(t *testing.T) {
			w := newFixture(t)
			other := sized("20m", "30Mi", func(p *corev1.Pod) { p.Name, p.UID = "b", "uid-b" })
			w.add(other)
			p := sized("20m", "30Mi")
			w.add(p)
			w.waitStatus(p.UID, "running", running)
			w.waitStatus(other.UID, "running", running)
			w.admitter.setResizeFailure(&status.Failure{Reason: corev1.PodReasonDeferred, Message: "later"})
			p = resized(p, "40m", "30Mi")
			w.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
			w.waitStatus(p.UID, "deferred", func(s corev1.PodStatus) bool { return findCondition(s, corev1.PodResizePending) != nil })
			require.Empty(t, w.metrics.withPrefix("accepted"))
			w.admitter.setResizeFailure(nil)
			free(w, p, other)
			w.waitFor("granted", func() bool { return len(w.metrics.withPrefix("accepted")) > 0 })
			require.Equal(t, map[string]int{"accepted " + trigger: 1}, w.metrics.withPrefix("accepted"))
		})
	}
}

// TestResizesAreCountedWithTheirEnd has one fail before it succeeds, and one that can never be.
func TestResizesAreCountedWithTheirEnd(t *testing.T) {
	w := newFixture(t)
	p := sized("20m", "30Mi")
	w.add(p)
	w.waitStatus(p.UID, "running", running)
	w.runtime.FailNext("UpdateContainerResources", errors.New("busy"))
	p = resized(p, "20m", "20Mi")
	w.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	w.waitFor("failed", func() bool { return w.metrics.withPrefix("resized")["resized false"] == 1 })
	w.waitFor("resized", func() bool { w.clock.Step(time.Second); return w.metrics.withPrefix("resized")["resized true"] == 1 })
	require.Equal(t, map[string]int{"resized false": 1, "resized true": 1}, w.metrics.withPrefix("resized"))
	w.admitter.setResizeFailure(&status.Failure{Reason: corev1.PodReasonInfeasible, Message: "never", Detail: "too_large"})
	w.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(p, "64", "20Mi")})
	w.waitFor("told", func() bool { return w.metrics.withPrefix("infeasible")["infeasible too_large"] == 1 })
}

// TestEvictionIsCountedOnce has a Pod evicted by a signal that is given again while it ends, and one by nobody's signal.
func TestEvictionIsCountedOnce(t *testing.T) {
	w := newFixture(t)
	p := sized("20m", "30Mi")
	other := sized("20m", "30Mi", func(p *corev1.Pod) { p.Name, p.UID = "b", "uid-b" })
	w.add(p)
	w.add(other)
	w.waitStatus(p.UID, "running", running)
	w.waitStatus(other.UID, "running", running)
	for range 3 {
		w.manager.Evict(p.UID, status.Failure{Reason: "Evicted", Detail: "disk"}, nil)
		w.manager.Evict(other.UID, status.Failure{Reason: "Killed"}, nil)
	}
	failed := func(s corev1.PodStatus) bool { return s.Phase == corev1.PodFailed }
	w.waitStatus(p.UID, "failed", failed)
	w.waitStatus(other.UID, "failed", failed)
	require.Equal(t, map[string]int{"evicted disk": 1}, w.metrics.withPrefix("evicted"))
}

// TestSameUIDAgainBeginsAnew has a Pod deleted and made again while its containers still end, as an API server that was
// given an older state back does.
func TestSameUIDAgainBeginsAnew(t *testing.T) {
	w := newFixture(t)
	p := pod("a")
	w.add(p)
	w.waitStatus(p.UID, "running", running)
	stop := w.runtime.Block("StopContainer")
	w.manager.HandlePod(config.Change{Op: config.Remove, Pod: p})
	w.waitFor("it ends", func() bool { return w.runtime.Calls("StopContainer") == 1 })
	again := p.DeepCopy()
	again.Labels = map[string]string{"life": "second"}
	w.add(p)
	w.manager.HandlePod(config.Change{Op: config.Update, Pod: again})
	require.Empty(t, w.metrics.withPrefix("restarted"))
	stop()
	w.waitFor("it runs anew", func() bool { return w.runtime.Calls("StartContainer") == 2 && w.runtime.Running()["main"] == 1 })
	w.waitStatus(p.UID, "running", running)
	require.Equal(t, map[string]int{"restarted false": 1}, w.metrics.withPrefix("restarted"))
	require.Equal(t, "second", w.manager.Pods()[0].Labels["life"], "as its source had it last")

	stop = w.runtime.Block("StopContainer")
	w.manager.HandlePod(config.Change{Op: config.Remove, Pod: again})
	w.waitFor("it ends", func() bool { return w.runtime.Calls("StopContainer") == 2 })
	w.add(p)
	w.manager.HandlePod(config.Change{Op: config.Remove, Pod: p})
	stop()
	w.waitFor("gone", func() bool { return !w.manager.Has(p.UID) })
	require.Equal(t, map[string]int{"restarted false": 1}, w.metrics.withPrefix("restarted"), "deleted again before it began")
	require.Equal(t, 2, w.runtime.Calls("StartContainer"))
}

// TestStaticPodWithItsUIDAgainBeginsAnew has a manifest taken away and put back while its Pod ends, as the source of
// static Pods tells of that: one of a name at a time.
func TestStaticPodWithItsUIDAgainBeginsAnew(t *testing.T) {
	w := newFixture(t)
	source, err := config.NewStatic(config.StaticDeps{Handle: func(c config.Change) { w.manager.HandlePod(c) }})
	require.NoError(t, err)
	w.gone = source.PodGone
	p := pod("a", func(p *corev1.Pod) { p.Annotations = map[string]string{config.SourceAnnotation: config.SourceFile} })
	source.Replace("file", []*corev1.Pod{p})
	w.waitStatus(p.UID, "running", running)
	stop := w.runtime.Block("StopContainer")
	source.Replace("file", nil)
	w.waitFor("it ends", func() bool { return w.runtime.Calls("StopContainer") == 1 })
	source.Replace("file", []*corev1.Pod{p})
	stop()
	w.waitFor("it runs anew", func() bool { return w.runtime.Calls("StartContainer") == 2 && w.runtime.Running()["main"] == 1 })
	require.Equal(t, map[string]int{"restarted true": 1}, w.metrics.withPrefix("restarted"))

	source.Replace("file", nil)
	w.waitFor("gone", func() bool { return !w.manager.Has(p.UID) })
	source.Replace("file", []*corev1.Pod{p})
	w.waitFor("it runs a third time", func() bool { return w.runtime.Calls("StartContainer") == 3 })
	require.Equal(t, map[string]int{"restarted true": 1}, w.metrics.withPrefix("restarted"), "one of which nothing was left is new")
}
