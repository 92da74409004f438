package podworker_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/allocation"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/cri/fake"
	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/pleg"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/prober"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a node in memory: everything around the workers.
type fixture struct {
	t        *testing.T
	dir      string // of the kubelet
	clock    *clocktesting.FakeClock
	runtime  *fake.Runtime
	volumes  *volumes
	statuses *statuses
	builder  *builder
	admitter *admitter
	preempts preemptor // of the next start
	recorder *recorder
	hooks    *hooks
	resumed  chan<- prober.Container // of the next start
	metrics  *countingMetrics
	tracer   trace.Tracer    // of the next start
	gone     func(types.UID) // set before there are Pods
	watcher  *pleg.Watcher
	manager  *podworker.Manager
	signals  *podworker.Signals
	stop     func()
}

func newFixture(t *testing.T) *fixture {
	clock := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	f := &fixture{
		t: t, dir: t.TempDir(), clock: clock, runtime: fake.New(clock), volumes: &volumes{mounted: map[types.UID]bool{}},
		statuses: &statuses{last: map[types.UID]corev1.PodStatus{}, finished: map[types.UID]bool{},
			changed: make(chan struct{}, 1)},
		metrics: &countingMetrics{by: map[string]int{}},
		builder: &builder{}, admitter: &admitter{}, hooks: &hooks{},
		recorder: &recorder{counts: map[string]int{}, fieldPaths: map[string][]string{}},
	}
	f.start()
	t.Cleanup(func() { f.stop() })
	return f
}

// start starts a kubelet on what exists, as after a crash.
func (f *fixture) start() {
	pulls, err := images.New(images.Deps{Service: f.runtime, Clock: f.clock}, images.Config{})
	require.NoError(f.t, err)
	signals := podworker.NewSignals()
	watcher, err := pleg.New(pleg.Deps{
		Runtime: f.runtime, Clock: f.clock,
		OnPodChanged: signals.RuntimeChanged, OnListed: signals.RuntimePods,
	}, pleg.Config{})
	require.NoError(f.t, err)
	grants := allocation.Open(f.dir, nil)
	manager, err := podworker.New(podworker.Deps{
		Signals: signals, Runtime: f.runtime, Reader: watcher, Images: pulls, Volumes: f.volumes, Statuses: f.statuses,
		Probes: probes{f.resumed}, Hooks: f.hooks, Builder: f.builder, Admitter: f.admitter, Preemptor: &f.preempts, Clock: f.clock,
		Recorder: f.recorder, Allocations: grants, Metrics: f.metrics, Tracer: f.tracer,
		OnPodGone: func(uid types.UID) {
			if f.gone != nil {
				f.gone(uid)
			}
		},
	}, podworker.Config{HostIPs: func() []string { return []string{"10.0.0.1"} }})
	require.NoError(f.t, err)
	f.manager, f.watcher, f.signals = manager, watcher, signals
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = watcher.Start(ctx) })
	group.Go(func() { _ = grants.Start(ctx) })
	group.Go(func() { _ = manager.Start(ctx) })
	f.stop = sync.OnceFunc(func() { cancel(); group.Wait() })
}

// add adds a copy of the Pod: what the manager gets belongs to it, and the test may change its own.
func (f *fixture) add(pod *corev1.Pod) {
	f.manager.HandlePod(config.Change{Op: config.Add, Pod: pod.DeepCopy()})
}

// waitStatus waits until the Pod's status satisfies the condition.
func (f *fixture) waitStatus(uid types.UID, what string, ok func(s corev1.PodStatus) bool) corev1.PodStatus {
	f.t.Helper()
	deadline := time.After(time.Minute)
	for {
		f.statuses.mu.Lock()
		s := f.statuses.last[uid]
		f.statuses.mu.Unlock()
		if ok(s) {
			return s
		}
		select {
		case <-f.statuses.changed:
		case <-deadline:
			require.FailNow(f.t, "did not happen", "%s; status is %+v", what, s)
		}
	}
}

func (f *fixture) waitFor(what string, ok func() bool) {
	f.t.Helper()
	require.Eventually(f.t, ok, time.Minute, time.Millisecond, what)
}

func running(s corev1.PodStatus) bool { return s.Phase == corev1.PodRunning && podutil.IsReady(&s) }

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	grace := int64(30)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name), Generation: 1},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "main", Image: "app:1"}},
		},
	}
	for _, fn := range change {
		fn(p)
	}
	return p
}

func deleted(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	now, grace := metav1.Now(), int64(30)
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
	return p
}
