package podworker_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/status"
)

// countingMetrics counts the calls of the metrics.
type countingMetrics struct {
	mu sync.Mutex
	by map[string]int
	// startPanics is how often WorkerStarted still panics.
	startPanics int
}

var _ podworker.Metrics = (*countingMetrics)(nil)

func (c *countingMetrics) count(words ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by[strings.TrimSpace(fmt.Sprintln(words...))]++
}

// WorkerStarted implements podworker.Metrics.
func (c *countingMetrics) WorkerStarted(time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.startPanics > 0 {
		c.startPanics--
		panic("injected at the start of a worker")
	}
}

// withPrefix returns the counts of calls that begin with the text.
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

func (c *countingMetrics) SandboxStarted(*corev1.Pod, bool, error)                   {}
func (c *countingMetrics) ContainerStarted(*corev1.Pod, podutil.Kind, string, error) {}
func (c *countingMetrics) ImageVolumes(volumes, mounts int, mounted bool) {
	c.count("image volumes", volumes, mounts, mounted)
}
func (c *countingMetrics) ContainerEnded(podutil.Kind, int32, string)             {}
func (c *countingMetrics) PodRunning(time.Duration, time.Duration, time.Duration) {}
func (c *countingMetrics) SyncDuration(string, time.Duration)                     {}
func (c *countingMetrics) OrphanedPod()                                           {}
func (c *countingMetrics) ResizeInfeasible(detail string)                         { c.count("infeasible", detail) }
func (c *countingMetrics) Evicted(signal string)                                  { c.count("evicted", signal) }
func (c *countingMetrics) Preempted(resource string)                              { c.count("preempted", resource) }
func (c *countingMetrics) Restarted(static bool)                                  { c.count("restarted", static) }
func (c *countingMetrics) ResizeRequested(what, requirement, operation string) {
	c.count("asked", what, requirement, operation)
}
func (c *countingMetrics) ResizeAccepted(trigger string)           { c.count("accepted", trigger) }
func (c *countingMetrics) ResizeFinished(_ time.Duration, ok bool) { c.count("resized", ok) }

// TestResizeRequestsAreCounted changes each amount in each way.
func TestResizeRequestsAreCounted(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "30Mi")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	update := func(cpu, memory string, change func(r *corev1.ResourceRequirements)) {
		p = resized(p, cpu, memory)
		change(&p.Spec.Containers[0].Resources)
		f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	}
	update("40m", "20Mi", func(r *corev1.ResourceRequirements) {
		r.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("40m")}
	})
	update("40m", "20Mi", func(r *corev1.ResourceRequirements) { r.Limits = nil })
	f.manager.HandlePod(config.Change{Op: config.Reconcile, Pod: p.DeepCopy()})
	update("40m", "20Mi", func(r *corev1.ResourceRequirements) { r.Limits = nil })
	f.waitFor("all are taken", func() bool { return len(f.metrics.withPrefix("asked")) == 7 })
	require.Equal(t, map[string]int{
		"asked cpu requests increase": 1, "asked memory requests remove": 1, "asked cpu limits increase": 1,
		"asked memory limits decrease": 1,
		"asked cpu limits remove":      1, "asked memory limits remove": 1, "asked memory requests add": 1,
	}, f.metrics.withPrefix("asked"))
}

// TestDeferredResourcesThatAreGrantedAreCounted frees resources in each way for a deferred resize.
func TestDeferredResourcesThatAreGrantedAreCounted(t *testing.T) {
	for trigger, free := range map[string]func(f *fixture, p, other *corev1.Pod){
		"pod_terminated": func(f *fixture, _, other *corev1.Pod) {
			f.manager.Evict(other.UID, status.Failure{Reason: "Evicted"}, nil)
		},
		"pod_updated": func(f *fixture, p, _ *corev1.Pod) {
			f.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(p, "30m", "30Mi")})
		},
		"pod_resized": func(f *fixture, _, other *corev1.Pod) {
			f.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(other, "10m", "30Mi")})
		},
		"periodic_retry": func(f *fixture, p, _ *corev1.Pod) {
			f.admitter.setMilliCPU(0) // which no event reports
			f.signals.RuntimeChanged(p.UID)
		},
		"pods_added": func(f *fixture, p, _ *corev1.Pod) {
			f.stop()
			p = p.DeepCopy()
			p.Status, _ = f.statuses.Get(p.UID)
			f.start()
			f.add(p)
			f.manager.SourcesReady()
		},
	} {
		t.Run(trigger, func(t *testing.T) {
			f := newFixture(t)
			other := sized("20m", "30Mi", func(p *corev1.Pod) { p.Name, p.UID = "b", "uid-b" })
			f.add(other)
			p := sized("20m", "30Mi")
			f.add(p)
			f.waitStatus(p.UID, "running", running)
			f.waitStatus(other.UID, "running", running)
			f.admitter.setMilliCPU(50) // the other has 20 of them, so that no sync grants the resize before they are free
			p = resized(p, "40m", "30Mi")
			f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
			f.waitStatus(p.UID, "deferred", func(s corev1.PodStatus) bool { return findCondition(s, corev1.PodResizePending) != nil })
			require.Empty(t, f.metrics.withPrefix("accepted"))
			free(f, p, other)
			f.waitFor("granted", func() bool { return len(f.metrics.withPrefix("accepted")) > 0 })
			require.Equal(t, map[string]int{"accepted " + trigger: 1}, f.metrics.withPrefix("accepted"))
		})
	}
}

// TestResizesAreCountedWithTheirEnd has a resize that fails before it succeeds, and one that is infeasible.
func TestResizesAreCountedWithTheirEnd(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "30Mi")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	f.runtime.FailNext("UpdateContainerResources", errors.New("busy"))
	p = resized(p, "20m", "20Mi")
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: p})
	f.waitFor("failed", func() bool { return f.metrics.withPrefix("resized")["resized false"] == 1 })
	f.waitFor("resized", func() bool { f.clock.Step(time.Second); return f.metrics.withPrefix("resized")["resized true"] == 1 })
	require.Equal(t, map[string]int{"resized false": 1, "resized true": 1}, f.metrics.withPrefix("resized"))
	f.admitter.setResizeFailure(&status.Failure{Reason: corev1.PodReasonInfeasible, Message: "never", Detail: "too_large"})
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: resized(p, "64", "20Mi")})
	f.waitFor("the infeasible resize", func() bool { return f.metrics.withPrefix("infeasible")["infeasible too_large"] == 1 })
}

// TestEvictionIsCountedOnce evicts a Pod with a signal three times while it ends, and another Pod without a signal.
func TestEvictionIsCountedOnce(t *testing.T) {
	f := newFixture(t)
	p := sized("20m", "30Mi")
	other := sized("20m", "30Mi", func(p *corev1.Pod) { p.Name, p.UID = "b", "uid-b" })
	f.add(p)
	f.add(other)
	f.waitStatus(p.UID, "running", running)
	f.waitStatus(other.UID, "running", running)
	for range 3 {
		f.manager.Evict(p.UID, status.Failure{Reason: "Evicted", Detail: "disk"}, nil)
		f.manager.Evict(other.UID, status.Failure{Reason: "Killed"}, nil)
	}
	failed := func(s corev1.PodStatus) bool { return s.Phase == corev1.PodFailed }
	f.waitStatus(p.UID, "failed", failed)
	f.waitStatus(other.UID, "failed", failed)
	require.Equal(t, map[string]int{"evicted disk": 1}, f.metrics.withPrefix("evicted"))
}

// TestSameUIDAgainBeginsAnew deletes a Pod and creates it again while its containers still stop, as an API server does
// after a restore.
func TestSameUIDAgainBeginsAnew(t *testing.T) {
	f := newFixture(t)
	p := pod("a")
	f.add(p)
	f.waitStatus(p.UID, "running", running)
	stop := f.runtime.Block("StopContainer")
	f.manager.HandlePod(config.Change{Op: config.Remove, Pod: p})
	f.waitFor("it ends", func() bool { return f.runtime.Calls("StopContainer") == 1 })
	again := p.DeepCopy()
	again.Labels = map[string]string{"life": "second"}
	f.add(p)
	f.manager.HandlePod(config.Change{Op: config.Update, Pod: again})
	require.Empty(t, f.metrics.withPrefix("restarted"))
	stop()
	f.waitFor("it runs anew", func() bool { return f.runtime.Calls("StartContainer") == 2 && f.runtime.Running()["main"] == 1 })
	f.waitStatus(p.UID, "running", running)
	require.Equal(t, map[string]int{"restarted false": 1}, f.metrics.withPrefix("restarted"))
	require.Equal(t, "second", f.manager.Pods()[0].Labels["life"], "as its source had it last")

	stop = f.runtime.Block("StopContainer")
	f.manager.HandlePod(config.Change{Op: config.Remove, Pod: again})
	f.waitFor("it ends", func() bool { return f.runtime.Calls("StopContainer") == 2 })
	f.add(p)
	f.manager.HandlePod(config.Change{Op: config.Remove, Pod: p})
	stop()
	f.waitFor("gone", func() bool { return !f.manager.Has(p.UID) })
	require.Equal(t, map[string]int{"restarted false": 1}, f.metrics.withPrefix("restarted"), "deleted again before it began")
	require.Equal(t, 2, f.runtime.Calls("StartContainer"))
}

// TestStaticPodWithItsUIDAgainBeginsAnew removes a manifest and puts it back while its Pod stops. The source of static
// Pods delivers one Pod of a name at a time.
func TestStaticPodWithItsUIDAgainBeginsAnew(t *testing.T) {
	f := newFixture(t)
	source, err := config.NewStatic(config.StaticDeps{Handle: func(c config.Change) { f.manager.HandlePod(c) }})
	require.NoError(t, err)
	f.gone = source.PodGone
	p := pod("a", func(p *corev1.Pod) { p.Annotations = map[string]string{config.SourceAnnotation: config.SourceFile} })
	source.Replace("file", []*corev1.Pod{p})
	f.waitStatus(p.UID, "running", running)
	stop := f.runtime.Block("StopContainer")
	source.Replace("file", nil)
	f.waitFor("it ends", func() bool { return f.runtime.Calls("StopContainer") == 1 })
	source.Replace("file", []*corev1.Pod{p})
	stop()
	f.waitFor("it runs anew", func() bool { return f.runtime.Calls("StartContainer") == 2 && f.runtime.Running()["main"] == 1 })
	require.Equal(t, map[string]int{"restarted true": 1}, f.metrics.withPrefix("restarted"))
	f.waitStatus(p.UID, "running again", func(s corev1.PodStatus) bool {
		return running(s) && s.ContainerStatuses[0].RestartCount == 1
	})

	source.Replace("file", nil)
	f.waitFor("gone", func() bool { return !f.manager.Has(p.UID) })
	source.Replace("file", []*corev1.Pod{p})
	f.waitFor("it runs a third time", func() bool { return f.runtime.Calls("StartContainer") == 3 })
	require.Equal(t, map[string]int{"restarted true": 1}, f.metrics.withPrefix("restarted"), "one of which nothing was left is new")
}

// TestImageVolumesAreCounted has the runtime refuse one first: it is created again, and counted again.
func TestImageVolumesAreCounted(t *testing.T) {
	f := newFixture(t)
	f.runtime.FailNext("CreateContainer", grpcstatus.Error(codes.Unknown, "ImageVolumeMountFailed: no such layer"))
	p := pod("data", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{
			{Name: "data", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "data:1"}}},
			{Name: "other", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{
			{Name: "data", MountPath: "/a"}, {Name: "data", MountPath: "/b"}, {Name: "other", MountPath: "/c"},
		}
	})
	f.add(p)
	f.waitFor("it is created again", func() bool { f.clock.Step(time.Second); return f.runtime.Running()["main"] == 1 })
	require.Equal(t, map[string]int{"image volumes 1 2 false": 1, "image volumes 1 2 true": 1}, f.metrics.withPrefix("image volumes"))
}

func TestStatesWithoutAWorkerAreCounted(t *testing.T) {
	f := newFixture(t)
	counts := f.manager.CountByState()
	require.Len(t, counts, 15)
	f.add(pod("p"))
	f.waitStatus("uid-p", "running", running)
	desired := podworker.WorkerState{Lifecycle: "sync", Config: podworker.ConfigDesired}
	f.waitFor("a worker in the state", func() bool { return f.manager.CountByState()[desired] == 1 })
	require.Len(t, f.manager.CountByState(), 15)
	require.True(t, f.manager.IsDesired("uid-p"))
	f.manager.HandlePod(config.Change{Op: config.Remove, Pod: pod("p")})
	require.False(t, f.manager.IsDesired("uid-p"), "it may still run")
}
