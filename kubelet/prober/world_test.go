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

// look is one look that the fake Looker was asked for; the kind is told by the probe's path.
type look struct {
	kind string
	at   time.Duration
}

// fakeLooker answers with a function of the kind of probe and the time since its making.
type fakeLooker struct {
	begin  time.Time
	answer func(kind string, at time.Duration) (probe.Result, string, error)

	mu    sync.Mutex
	looks []look
}

func (f *fakeLooker) Probe(_ context.Context, handler corev1.ProbeHandler, _ probe.Target, _ time.Duration) (
	probe.Result, string, error,
) {
	l := look{kind: handler.HTTPGet.Path, at: time.Since(f.begin)}
	f.mu.Lock()
	f.looks = append(f.looks, l)
	f.mu.Unlock()
	return f.answer(l.kind, l.at)
}

// times are when looks of a kind were made.
func (f *fakeLooker) times(kind string) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var times []time.Duration
	for _, l := range f.looks {
		if l.kind == kind {
			times = append(times, l.at)
		}
	}
	return times
}

type verdict struct {
	kind   prober.Type
	passed bool
	at     time.Duration
}

// bench is a running Manager in a synctest bubble.
type bench struct {
	*prober.Manager
	looker   *fakeLooker
	recorder *record.FakeRecorder
	registry *prometheus.Registry
	timeline *timeline.Recorder

	mu       sync.Mutex
	verdicts []verdict
}

// run calls test in a bubble, with a Manager whose looks are answered by answer.
func run(t *testing.T, answer func(kind string, at time.Duration) (probe.Result, string, error), test func(*testing.T, *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{
			looker:   &fakeLooker{begin: time.Now(), answer: answer},
			recorder: record.NewFakeRecorder(1000),
			registry: prometheus.NewRegistry(),
			timeline: timeline.New(clock.RealClock{}, 0),
		}
		var err error
		b.Manager, err = prober.New(prober.Deps{
			Looker: b.looker, Recorder: b.recorder, Registerer: b.registry, Timeline: b.timeline,
			OnVerdict: func(v prober.Verdict) {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.verdicts = append(b.verdicts, verdict{v.Type, v.Passed, time.Since(b.looker.begin)})
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
func (b *bench) wait(until time.Duration) {
	time.Sleep(until - time.Since(b.looker.begin) + time.Microsecond)
	synctest.Wait()
}

func (b *bench) seen() []verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.verdicts
}

func (b *bench) events() []string {
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

func requireReady(t *testing.T, b *bench, id string, want bool) {
	t.Helper()
	ready, known := b.Ready(id)
	require.True(t, known)
	require.Equal(t, want, ready)
}
