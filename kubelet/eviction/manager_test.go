package eviction

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/status"
)

// calls are those of the Manager.
type calls struct {
	measured, discarded, removed int
	armed                        map[Signal]int64
	evicted                      []string
	failures                     []status.Failure
	graces                       []int64
}

// seen returns the calls until now.
func (w *world) seen() calls {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.calls
	out.armed, out.evicted = maps.Clone(out.armed), slices.Clone(out.evicted)
	out.failures, out.graces = slices.Clone(out.failures), slices.Clone(out.graces)
	return out
}

// world is a machine with Pods: fakes of what the Manager measures and of what it ends.
type world struct {
	mu       sync.Mutex
	observed Observations
	layout   Layout
	err      error
	notify   func()
	calls    calls

	pods  []*corev1.Pod
	usage Usage
	// frees is what the end of each Pod makes available, by name; unused what removing images does.
	frees  map[string]Observations
	unused Observations
	// hangs are the names of Pods that do not end.
	hangs []string
}

var (
	_ Machine = (*world)(nil)
	_ Pods    = (*world)(nil)
)

func (w *world) Observe(context.Context) (Observations, Layout, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls.measured++
	out := Observations{}
	for signal, o := range w.observed {
		o.At = time.Now()
		out[signal] = o
	}
	return out, w.layout, w.err
}

func (w *world) Watch(ctx context.Context, notify func()) error {
	w.mu.Lock()
	w.notify = notify
	w.mu.Unlock()
	<-ctx.Done()
	return nil
}

func (w *world) Arm(signal Signal, distance int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls.armed[signal] = distance
	return signal == MemoryAvailable
}

func (w *world) ActivePods() []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.pods)
}

func (w *world) EvictThen(uid types.UID, failure status.Failure, grace *int64, done func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	index := slices.IndexFunc(w.pods, func(p *corev1.Pod) bool { return p.UID == uid })
	if index < 0 {
		return false
	}
	name := w.pods[index].Name
	w.calls.evicted, w.calls.failures, w.calls.graces = append(w.calls.evicted, name), append(w.calls.failures, failure), append(w.calls.graces, *grace)
	w.pods = slices.Delete(w.pods, index, index+1)
	maps.Copy(w.observed, w.frees[name])
	if !slices.Contains(w.hangs, name) {
		done()
	}
	return true
}

func (w *world) DiscardEnded(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls.discarded++
	return nil
}

func (w *world) removeImages(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls.removed++
	maps.Copy(w.observed, w.unused)
	return nil
}

// report is a report of the kernel.
func (w *world) report() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notify()
}

func (w *world) set(signal Signal, available int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.observed[signal] = Observation{Available: available, Capacity: 100 * gi}
}

// runManager calls test in a bubble with a running Manager of this world.
func runManager(t *testing.T, w *world, config Config, test func(t *testing.T, m *Manager, events *record.FakeRecorder)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w.calls.armed = map[Signal]int64{}
		ready := make(chan struct{})
		close(ready)
		events := record.NewFakeRecorder(1000)
		m, err := New(Deps{
			Machine: w, Pods: w, Usage: func(context.Context, bool) (Usage, error) { return w.usage, nil }, RemoveImages: w.removeImages,
			Pressure: &Pressure{}, OnPressure: func() {}, ObserveStatsAge: func(string, time.Duration) {}, Ready: ready,
			Node: &corev1.ObjectReference{Kind: "Node"}, Recorder: events, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
		}, config, parse(t, config))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Start(ctx) }()
		synctest.Wait()
		test(t, m, events)
		cancel()
		require.NoError(t, <-done)
	})
}

// TestPodIsEvictedUntilEnoughIsAvailable has three Pods, of which two have to end.
func TestPodIsEvictedUntilEnoughIsAvailable(t *testing.T) {
	critical := pod("critical", 2_000_000_000, "", "")
	w := &world{
		observed: Observations{MemoryAvailable: {Available: 50 * gi, Capacity: 100 * gi}},
		pods:     []*corev1.Pod{pod("good", 0, "10Gi", ""), critical, pod("bad", 0, "", ""), pod("worse", 0, "", "")},
		usage: Usage{
			"good": stats(9*gi, 1, 0, 0, 0), "critical": stats(50*gi, 1, 0, 0, 0), "bad": stats(2*gi, 1, 0, 0, 0), "worse": stats(3*gi, 1, 0, 0, 0),
		},
		frees: map[string]Observations{
			"worse": {MemoryAvailable: {Available: 9 * gi, Capacity: 100 * gi}}, "bad": {MemoryAvailable: {Available: 11 * gi, Capacity: 100 * gi}},
		},
	}
	runManager(t, w, Config{Hard: map[string]string{"memory.available": "10Gi"}}, func(t *testing.T, m *Manager, events *record.FakeRecorder) {
		require.EqualValues(t, 40*gi, w.seen().armed[MemoryAvailable])
		w.set(MemoryAvailable, 5*gi)
		before := time.Now()
		time.Sleep(gapAfterReport) // which the first observation has used up
		w.report()
		synctest.Wait()
		require.Less(t, time.Since(before), time.Second, "the kernel's report is acted upon at once")
		require.Equal(t, []string{"worse"}, w.seen().evicted)
		time.Sleep(time.Second)
		require.Equal(t, []string{"worse", "bad"}, w.seen().evicted)
		require.Equal(t, []int64{1, 1}, w.seen().graces)
		require.True(t, w.seen().failures[0].Disruption)
		require.False(t, w.seen().failures[0].Discard)
		require.Equal(t, "memory.available", w.seen().failures[0].Detail)
		require.Zero(t, w.seen().removed, "images do not occupy memory")
		require.Equal(t, corev1.NodeMemoryPressure, m.deps.Pressure.Conditions()[0].Type)
		require.Equal(t, "Warning EvictionThresholdMet Attempting to reclaim memory", <-events.Events)
		require.Contains(t, <-events.Events, "Warning Evicted The node was low on resource: memory. ")
		time.Sleep(6 * time.Minute)
		require.Equal(t, []string{"worse", "bad"}, w.seen().evicted)
		require.Empty(t, m.deps.Pressure.Conditions())
	})
}

func TestUnusedImagesAreRemovedBeforePodsAreEvicted(t *testing.T) {
	w := &world{
		observed: Observations{NodeFsAvailable: {Available: 50 * gi, Capacity: 100 * gi}, ImageFsAvailable: {Available: 50 * gi, Capacity: 100 * gi}},
		pods:     []*corev1.Pod{pod("p", 0, "", "")},
		unused:   Observations{NodeFsAvailable: {Available: 12 * gi, Capacity: 100 * gi}},
	}
	config := Config{Hard: map[string]string{"nodefs.available": "10%"}, MinimumReclaim: map[string]string{"nodefs.available": "1Gi"}}
	runManager(t, w, config, func(t *testing.T, _ *Manager, _ *record.FakeRecorder) {
		w.set(NodeFsAvailable, 9*gi)
		time.Sleep(maxInterval + time.Second)
		require.Empty(t, w.seen().evicted)
		require.Equal(t, 1, w.seen().removed)
		require.Equal(t, 1, w.seen().discarded)
		w.mu.Lock()
		w.unused = Observations{NodeFsAvailable: {Available: 10*gi + 1, Capacity: 100 * gi}} // without the minimum reclaim
		w.mu.Unlock()
		w.set(NodeFsAvailable, 9*gi)
		time.Sleep(maxInterval + time.Second)
		require.Equal(t, []string{"p"}, w.seen().evicted)
		require.True(t, w.seen().failures[0].Discard, "its containers occupy the disk, too")
	})
}

func TestSoftThresholdUsesThePodsGracePeriod(t *testing.T) {
	for _, c := range []struct {
		own        *int64
		most, want int64
	}{
		{ptr.To[int64](600), 30, 30}, {ptr.To[int64](10), 30, 10}, {nil, 30, 30}, {ptr.To[int64](600), 0, 0},
		{ptr.To[int64](600), -1, 600}, {nil, -1, corev1.DefaultTerminationGracePeriodSeconds},
	} {
		slow := pod("p", 0, "", "")
		slow.Spec.TerminationGracePeriodSeconds = c.own
		w := &world{
			observed: Observations{MemoryAvailable: {Available: 0, Capacity: 100 * gi}}, pods: []*corev1.Pod{slow},
			frees: map[string]Observations{"p": {MemoryAvailable: {Available: 50 * gi, Capacity: 100 * gi}}},
		}
		config := Config{
			Hard: map[string]string{}, Soft: map[string]string{"memory.available": "10%"},
			SoftGracePeriod: map[string]string{"memory.available": "1m"}, MaxPodGracePeriod: c.most,
		}
		runManager(t, w, config, func(t *testing.T, m *Manager, _ *record.FakeRecorder) {
			require.Len(t, m.deps.Pressure.Conditions(), 1)
			time.Sleep(59 * time.Second)
			require.Empty(t, w.seen().evicted)
			time.Sleep(2 * time.Second)
			require.Equal(t, []int64{c.want}, w.seen().graces)
		})
	}
}

// TestPodThatDoesNotEndIsAnEvent has the Pod that is evicted first hang: after its time the next one is evicted.
func TestPodThatDoesNotEndIsAnEvent(t *testing.T) {
	w := &world{
		observed: Observations{MemoryAvailable: {Available: 0, Capacity: 100 * gi}}, pods: []*corev1.Pod{pod("a", 0, "", ""), pod("b", 1, "", "")},
		frees: map[string]Observations{"b": {MemoryAvailable: {Available: 50 * gi, Capacity: 100 * gi}}}, hangs: []string{"a"},
	}
	runManager(t, w, Config{Hard: map[string]string{"memory.available": "10%"}}, func(t *testing.T, _ *Manager, events *record.FakeRecorder) {
		time.Sleep(cleanupTimeout)
		require.Equal(t, []string{"a"}, w.seen().evicted)
		time.Sleep(3 * time.Second)
		require.Equal(t, []string{"a", "b"}, w.seen().evicted)
		for _, want := range []string{"EvictionThresholdMet", "Evicted", "ExceededGracePeriod The Pod has not ended within its grace period of 1 s and 30s more."} {
			require.Contains(t, <-events.Events, "Warning "+want)
		}
	})
}

// TestIdleNodeIsHardlyMeasured counts the observations of an hour, with and without thresholds, and while nothing can be evicted.
func TestIdleNodeIsHardlyMeasured(t *testing.T) {
	free := Observations{MemoryAvailable: {Available: 50 * gi, Capacity: 100 * gi}}
	for _, test := range []struct {
		hard  map[string]string
		at    int64
		most  int
		least int
	}{
		{map[string]string{"memory.available": "1Gi"}, 50 * gi, 365, 355}, {map[string]string{}, 0, 0, 0},
		{map[string]string{"memory.available": "1Gi"}, 0, 365, 355},
	} {
		w := &world{observed: maps.Clone(free)}
		w.set(MemoryAvailable, test.at)
		runManager(t, w, Config{Hard: test.hard}, func(t *testing.T, _ *Manager, events *record.FakeRecorder) {
			time.Sleep(time.Hour)
			require.LessOrEqual(t, w.seen().measured, test.most)
			require.GreaterOrEqual(t, w.seen().measured, test.least)
			require.LessOrEqual(t, len(events.Events), test.most)
		})
	}
}

func TestUnmeasuredNodeEvictsNothing(t *testing.T) {
	w := &world{observed: Observations{}, err: errors.New("no runtime"), pods: []*corev1.Pod{pod("p", 0, "", "")}}
	runManager(t, w, Config{Hard: DefaultHard()}, func(t *testing.T, m *Manager, _ *record.FakeRecorder) {
		time.Sleep(time.Minute)
		require.Empty(t, w.seen().evicted)
		require.Empty(t, m.deps.Pressure.Conditions())
	})
}

func TestDependenciesAreRequired(t *testing.T) {
	_, err := New(Deps{}, Config{}, nil)
	require.EqualError(t, err, "eviction: Deps.Machine is required")
}

// TestAdmissionUnderPressure has the rules of Kubernetes.
func TestAdmissionUnderPressure(t *testing.T) {
	memory, disk := Condition{Type: corev1.NodeMemoryPressure}, Condition{Type: corev1.NodeDiskPressure}
	burstable, critical, static, tolerant, daemon := pod("burstable", 0, "1Mi", ""), pod("critical", 2_000_000_000, "", ""), pod("static", 0, "", ""),
		pod("tolerant", 0, "", ""), pod("daemon", 0, "", "")
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	tolerant.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	daemon.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}}
	for _, test := range []struct {
		conditions []Condition
		admitted   string
		message    string
	}{
		{nil, "plain burstable critical static tolerant daemon", ""},
		{[]Condition{memory}, "burstable critical static tolerant", "The node had condition: [MemoryPressure]. "},
		{[]Condition{disk}, "critical static", "The node had condition: [DiskPressure]. "},
		{[]Condition{disk, memory}, "critical static", "The node had condition: [DiskPressure MemoryPressure]. "},
	} {
		p := &Pressure{}
		p.set(test.conditions)
		var admitted []string
		for _, candidate := range []*corev1.Pod{pod("plain", 0, "", ""), burstable, critical, static, tolerant, daemon} {
			result := p.Admit(&lifecycle.PodAdmitAttributes{Pod: candidate})
			if result.Admit {
				admitted = append(admitted, candidate.Name)
				continue
			}
			require.Equal(t, lifecycle.PodAdmitResult{Reason: "Evicted", Message: test.message}, result)
		}
		require.Equal(t, test.admitted, strings.Join(admitted, " "))
	}
}
