package prober_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/prober"
	"github.com/berth-dev/berth/kubelet/prober/probe"
	"github.com/berth-dev/berth/timeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// probeCall is one call of the fake Prober; its kind is the probe's path.
type probeCall struct {
	kind string
	at   time.Duration
}

// fakeProber answers with a function of the kind of probe and the time since its making.
type fakeProber struct {
	begin   time.Time
	respond func(kind string, at time.Duration) (probe.Result, string, error)

	mu    sync.Mutex
	calls []probeCall
}

func (f *fakeProber) Probe(_ context.Context, handler corev1.ProbeHandler, _ probe.Target, _ time.Duration) (
	probe.Result, string, error,
) {
	l := probeCall{kind: handler.HTTPGet.Path, at: time.Since(f.begin)}
	f.mu.Lock()
	f.calls = append(f.calls, l)
	f.mu.Unlock()
	return f.respond(l.kind, l.at)
}

// times are when probes of a kind ran.
func (f *fakeProber) times(kind string) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var times []time.Duration
	for _, l := range f.calls {
		if l.kind == kind {
			times = append(times, l.at)
		}
	}
	return times
}

type result struct {
	kind   prober.Type
	passed bool
	at     time.Duration
}

// fixture is a running Manager in a synctest bubble.
type fixture struct {
	*prober.Manager
	prober   *fakeProber
	recorder *record.FakeRecorder
	registry *prometheus.Registry
	timeline *timeline.Recorder

	mu      sync.Mutex
	results []result
}

// run calls test in a bubble, with a Manager whose probes return what respond returns.
func run(t *testing.T, answer func(kind string, at time.Duration) (probe.Result, string, error), test func(*testing.T, *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &fixture{
			prober:   &fakeProber{begin: time.Now(), respond: answer},
			recorder: record.NewFakeRecorder(1000),
			registry: prometheus.NewRegistry(),
			timeline: timeline.New(clock.RealClock{}, 0),
		}
		var err error
		b.Manager, err = prober.New(prober.Deps{
			Prober: b.prober, Recorder: b.recorder, Registerer: b.registry, Timeline: b.timeline,
			OnResult: func(v prober.Result) {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.results = append(b.results, result{v.Type, v.Passed, time.Since(b.prober.begin)})
			},
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.Start(ctx) }()
		test(t, b)
		cancel()
		require.NoError(t, <-done)
	})
}

// wait lets virtual time pass, up to the given time since the beginning.
func (b *fixture) wait(until time.Duration) {
	time.Sleep(until - time.Since(b.prober.begin) + time.Microsecond)
	synctest.Wait()
}

func (b *fixture) seen() []result {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.results
}

func (b *fixture) events() []string {
	var list []string
	for {
		select {
		case e := <-b.recorder.Events:
			list = append(list, e)
		default:
			return list
		}
	}
}

func httpProbe(kind string, change ...func(*corev1.Probe)) *corev1.Probe {
	p := &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: kind}},
		PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3,
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func pod(c corev1.Container) *corev1.Pod {
	c.Name = "app"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns", UID: "uid-1"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{c}},
	}
}

func started(id string) prober.Container {
	return prober.Container{Name: "app", ID: id, PodIP: "10.0.0.1", StartedAt: time.Now()}
}

func passAfter(d time.Duration) func(string, time.Duration) (probe.Result, string, error) {
	return func(_ string, at time.Duration) (probe.Result, string, error) {
		if at < d {
			return probe.Failure, "not yet", nil
		}
		return probe.Success, "", nil
	}
}

func requireReady(t *testing.T, b *fixture, id string, want bool) {
	t.Helper()
	ready, known := b.Ready(id)
	require.True(t, known)
	require.Equal(t, want, ready)
}
