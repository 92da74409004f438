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

	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/status"
)

// counts notes how often the workers told of what.
type counts struct {
	mu sync.Mutex
	by map[string]int
}

var _ podworker.Metrics = (*counts)(nil)

func (c *counts) count(words ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by[strings.TrimSpace(fmt.Sprintln(words...))]++
}

// of is what was told in words that begin so.
func (c *counts) of(beginning string) map[string]int {
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

func (c *counts) SandboxStarted(bool, error)                             {}
func (c *counts) ContainerStarted(kuberuntime.Kind, string, error)       {}
func (c *counts) ContainerEnded(kuberuntime.Kind, int32, string)         {}
func (c *counts) PodRunning(time.Duration, time.Duration, time.Duration) {}
func (c *counts) WorkerStarted(time.Duration)                            {}
func (c *counts) Round(string, time.Duration)                            {}
func (c *counts) Orphan()                                                {}
func (c *counts) Infeasible(detail string)                               { c.count("infeasible", detail) }
func (c *counts) Evicted(signal string)                                  { c.count("evicted", signal) }
func (c *counts) Restarted(static bool)                                  { c.count("restarted", static) }
func (c *counts) ResizeAsked(what, requirement, operation string) {
	c.count("asked", what, requirement, operation)
}
func (c *counts) Accepted(trigger string)          { c.count("accepted", trigger) }
func (c *counts) Resized(_ time.Duration, ok bool) { c.count("resized", ok) }

// TestWishesForResourcesAreCounted changes each amount in each way.
func TestWishesForResourcesAreCounted(t *testing.T) {
	w := newWorld(t)
	p := sized("20m", "30Mi")
	w.add(p)
	w.eventually(p.UID, "running", running)
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
	w.become("all are taken", func() bool { return len(w.counts.of("asked")) == 7 })
	require.Equal(t, map[string]int{
		"asked cpu requests increase": 1, "asked memory requests remove": 1, "asked cpu limits increase": 1,
		"asked memory limits decrease": 1,
		"asked cpu limits remove":      1, "asked memory limits remove": 1, "asked memory requests add": 1,
	}, w.counts.of("asked"))
}

// TestDeferredResourcesThatAreGrantedAreCounted has wishes wait for each thing that may free what they need.
func TestDeferredResourcesThatAreGrantedAreCounted(t *testing.T) {
	for trigger, free := range map[string]func(w *world, p, other *corev1.Pod){
		"pod_terminated": func(w *world, _, other *corev1.Pod) {
			w.manager.Evict(other.UID, status.Failure{Reason: "Evicted"}, nil)
		},
		"pod_updated": func(w *world, p, _ *corev1.Pod) {
			w.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(p, "30m", "30Mi")})
		},
		"pod_resized": func(w *world, _, other *corev1.Pod) {
			w.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(other, "10m", "30Mi")})
		},
		"periodic_retry": func(w *world, p, _ *corev1.Pod) { w.manager.Dirty(p.UID) },
		"pods_added": func(w *world, p, _ *corev1.Pod) {
			w.stop()
			p = p.DeepCopy()
			p.Status, _ = w.statuses.Get(p.UID)
			w.boot()
			w.add(p)
		},
	} {
		t.Run(trigger, func(t *testing.T) {
			w := newWorld(t)
			other := sized("20m", "30Mi", func(p *corev1.Pod) { p.Name, p.UID = "b", "uid-b" })
			w.add(other)
			p := sized("20m", "30Mi")
			w.add(p)
			w.eventually(p.UID, "running", running)
			w.eventually(other.UID, "running", running)
			w.admitter.answer(&status.Failure{Reason: corev1.PodReasonDeferred, Message: "later"})
			p = resized(p, "40m", "30Mi")
			w.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
			w.eventually(p.UID, "deferred", func(s corev1.PodStatus) bool { return has(s, corev1.PodResizePending) != nil })
			require.Empty(t, w.counts.of("accepted"))
			w.admitter.answer(nil)
			free(w, p, other)
			w.become("granted", func() bool { return len(w.counts.of("accepted")) > 0 })
			require.Equal(t, map[string]int{"accepted " + trigger: 1}, w.counts.of("accepted"))
		})
	}
}

// TestResizesAreCountedWithTheirEnd has one fail before it succeeds, and one that can never be.
func TestResizesAreCountedWithTheirEnd(t *testing.T) {
	w := newWorld(t)
	p := sized("20m", "30Mi")
	w.add(p)
	w.eventually(p.UID, "running", running)
	w.runtime.FailNext("UpdateContainerResources", errors.New("busy"))
	p = resized(p, "20m", "20Mi")
	w.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	w.become("failed", func() bool { return w.counts.of("resized")["resized false"] == 1 })
	w.become("resized", func() bool { w.clock.Step(time.Second); return w.counts.of("resized")["resized true"] == 1 })
	require.Equal(t, map[string]int{"resized false": 1, "resized true": 1}, w.counts.of("resized"))
	w.admitter.answer(&status.Failure{Reason: corev1.PodReasonInfeasible, Message: "never", Detail: "too_large"})
	w.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(p, "64", "20Mi")})
	w.become("told", func() bool { return w.counts.of("infeasible")["infeasible too_large"] == 1 })
}

// TestEvictionIsCountedOnce has a Pod evicted by a signal that is given again while it ends, and one by nobody's signal.
func TestEvictionIsCountedOnce(t *testing.T) {
	w := newWorld(t)
	p := sized("20m", "30Mi")
	other := sized("20m", "30Mi", func(p *corev1.Pod) { p.Name, p.UID = "b", "uid-b" })
	w.add(p)
	w.add(other)
	w.eventually(p.UID, "running", running)
	w.eventually(other.UID, "running", running)
	for range 3 {
		w.manager.Evict(p.UID, status.Failure{Reason: "Evicted", Detail: "disk"}, nil)
		w.manager.Evict(other.UID, status.Failure{Reason: "Killed"}, nil)
	}
	failed := func(s corev1.PodStatus) bool { return s.Phase == corev1.PodFailed }
	w.eventually(p.UID, "failed", failed)
	w.eventually(other.UID, "failed", failed)
	require.Equal(t, map[string]int{"evicted disk": 1}, w.counts.of("evicted"))
}

// TestSameUIDAgainBeginsAnew has a Pod deleted and made again while its containers still end, as an API server that was
// given an older state back does.
func TestSameUIDAgainBeginsAnew(t *testing.T) {
	w := newWorld(t)
	p := pod("a")
	w.add(p)
	w.eventually(p.UID, "running", running)
	stop := w.runtime.Block("StopContainer")
	w.manager.HandlePod(config.Change{Op: config.Remove, Pod: p})
	w.become("it ends", func() bool { return w.runtime.Calls("StopContainer") == 1 })
	again := p.DeepCopy()
	again.Labels = map[string]string{"life": "second"}
	w.add(p)
	w.manager.HandlePod(config.Change{Op: config.Update, Pod: again})
	require.Empty(t, w.counts.of("restarted"))
	stop()
	w.become("it runs anew", func() bool { return w.runtime.Calls("StartContainer") == 2 && w.runtime.Running()["main"] == 1 })
	w.eventually(p.UID, "running", running)
	require.Equal(t, map[string]int{"restarted false": 1}, w.counts.of("restarted"))
	require.Equal(t, "second", w.manager.Pods()[0].Labels["life"], "as its source had it last")

	stop = w.runtime.Block("StopContainer")
	w.manager.HandlePod(config.Change{Op: config.Remove, Pod: again})
	w.become("it ends", func() bool { return w.runtime.Calls("StopContainer") == 2 })
	w.add(p)
	w.manager.HandlePod(config.Change{Op: config.Remove, Pod: p})
	stop()
	w.become("gone", func() bool { return !w.manager.Has(p.UID) })
	require.Equal(t, map[string]int{"restarted false": 1}, w.counts.of("restarted"), "deleted again before it began")
	require.Equal(t, 2, w.runtime.Calls("StartContainer"))
}

// TestStaticPodWithItsUIDAgainBeginsAnew has a manifest taken away and put back while its Pod ends, as the source of
// static Pods tells of that: one of a name at a time.
func TestStaticPodWithItsUIDAgainBeginsAnew(t *testing.T) {
	w := newWorld(t)
	source, err := config.NewStatic(config.StaticDeps{Handle: func(c config.Change) { w.manager.HandlePod(c) }})
	require.NoError(t, err)
	w.gone = source.Gone
	p := pod("a", func(p *corev1.Pod) { p.Annotations = map[string]string{config.SourceAnnotation: config.SourceFile} })
	source.Replace("file", []*corev1.Pod{p})
	w.eventually(p.UID, "running", running)
	stop := w.runtime.Block("StopContainer")
	source.Replace("file", nil)
	w.become("it ends", func() bool { return w.runtime.Calls("StopContainer") == 1 })
	source.Replace("file", []*corev1.Pod{p})
	stop()
	w.become("it runs anew", func() bool { return w.runtime.Calls("StartContainer") == 2 && w.runtime.Running()["main"] == 1 })
	require.Equal(t, map[string]int{"restarted true": 1}, w.counts.of("restarted"))

	source.Replace("file", nil)
	w.become("gone", func() bool { return !w.manager.Has(p.UID) })
	source.Replace("file", []*corev1.Pod{p})
	w.become("it runs a third time", func() bool { return w.runtime.Calls("StartContainer") == 3 })
	require.Equal(t, map[string]int{"restarted true": 1}, w.counts.of("restarted"), "one of which nothing was left is new")
}
