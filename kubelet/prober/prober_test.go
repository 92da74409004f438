package prober_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/prober"
	"github.com/berth-dev/berth/kubelet/prober/probe"
	"github.com/berth-dev/berth/timeline"
)

func TestNewNeedsProber(t *testing.T) {
	_, err := prober.New(prober.Deps{})
	require.ErrorContains(t, err, "Deps.Prober is required")
}

func TestReadinessIsFoundEarly(t *testing.T) {
	run(t, passAfter(100*time.Millisecond), func(t *testing.T, b *fixture) {
		p := pod(corev1.Container{ReadinessProbe: httpProbe("ready")})
		b.ContainerStarted(p, started("c1"))
		requireReady(t, b, "c1", false)
		b.wait(30 * time.Second)

		ms := time.Millisecond
		require.Equal(t, []time.Duration{0, 20 * ms, 60 * ms, 140 * ms, 10140 * ms, 20140 * ms}, b.prober.times("ready"))
		require.Equal(t, []result{{prober.Readiness, true, 140 * ms}}, b.seen())
		requireReady(t, b, "c1", true)
		require.Empty(t, b.events(), "a failed early look is no event")

		record, ok := b.timeline.Record("uid-1")
		require.True(t, ok)
		require.Equal(t, timeline.StageProbe, record.Stages[0].Name)
		require.Equal(t, 140*ms, record.Stages[0].End.Sub(record.Stages[0].Start))
	})
}

func TestReadinessThresholds(t *testing.T) {
	failing := func(_ string, at time.Duration) (probe.Result, string, error) {
		if at > 15*time.Second && at < 45*time.Second {
			return probe.Failure, "sick", nil
		}
		return probe.Success, "", nil
	}
	run(t, failing, func(t *testing.T, b *fixture) {
		b.ContainerStarted(pod(corev1.Container{ReadinessProbe: httpProbe("ready", func(p *corev1.Probe) {
			p.SuccessThreshold, p.FailureThreshold = 2, 3
		})}), started("c1"))
		b.wait(90 * time.Second)
		s := time.Second
		require.Equal(t, []result{
			{prober.Readiness, true, 10 * s}, {prober.Readiness, false, 40 * s}, {prober.Readiness, true, 60 * s},
		}, b.seen())
		require.Equal(t, []string{
			"Warning Unhealthy Readiness probe failed: sick",
			"Warning Unhealthy Readiness probe failed: sick",
			"Warning Unhealthy Readiness probe failed: sick",
		}, b.events())
	})
}

func TestLivenessFailureAsksForKill(t *testing.T) {
	run(t, passAfter(time.Hour), func(t *testing.T, b *fixture) {
		p := pod(corev1.Container{LivenessProbe: httpProbe("alive", func(p *corev1.Probe) {
			p.TerminationGracePeriodSeconds = ptr.To[int64](5)
		})})
		b.ContainerStarted(p, started("c1"))
		requireReady(t, b, "c1", true)
		_, failed := b.Failed("c1")
		require.False(t, failed)
		b.wait(2 * time.Minute)

		s := time.Second
		require.Equal(t, []time.Duration{10 * s, 20 * s, 30 * s}, b.prober.times("alive"), "then no more looks")
		failure, failed := b.Failed("c1")
		require.True(t, failed)
		require.Equal(t, prober.Failure{Type: prober.Liveness, Message: "not yet", GraceSeconds: ptr.To[int64](5)}, failure)
		requireReady(t, b, "c1", true)

		// The container that takes its place is looked at afresh.
		b.ContainerStarted(p, started("c2"))
		_, failed = b.Failed("c2")
		require.False(t, failed)
		_, known := b.Ready("c1")
		require.False(t, known)
	})
}

// A container that is killed for its liveness probe may be in its preStop hook for long, in which it says by its readiness probe whether
// it serves.
func TestReadinessProbeOutlivesAFailedLivenessProbe(t *testing.T) {
	run(t, func(kind string, at time.Duration) (probe.Result, string, error) {
		if kind == "alive" || at > time.Minute {
			return probe.Failure, "sick", nil
		}
		return probe.Success, "", nil
	}, func(t *testing.T, b *fixture) {
		p := pod(corev1.Container{LivenessProbe: httpProbe("alive"), ReadinessProbe: httpProbe("ready")})
		b.ContainerStarted(p, started("c1"))
		b.wait(35 * time.Second)
		_, failed := b.Failed("c1")
		require.True(t, failed)
		requireReady(t, b, "c1", true)
		before := len(b.prober.times("ready"))
		b.wait(2 * time.Minute)
		require.Greater(t, len(b.prober.times("ready")), before)
		require.Len(t, b.prober.times("alive"), 3)
		requireReady(t, b, "c1", false)

		b.ContainerStopped(p.UID, "c1")
		before = len(b.prober.times("ready"))
		b.wait(3 * time.Minute)
		require.Len(t, b.prober.times("ready"), before)
	})
}

func TestInitialDelay(t *testing.T) {
	run(t, passAfter(0), func(t *testing.T, b *fixture) {
		delayed := func(p *corev1.Probe) { p.InitialDelaySeconds = 3 }
		b.ContainerStarted(pod(corev1.Container{
			LivenessProbe: httpProbe("alive", delayed), ReadinessProbe: httpProbe("ready", delayed),
		}), started("c1"))
		b.wait(5 * time.Second)
		require.Equal(t, []time.Duration{3 * time.Second}, b.prober.times("alive"))
		require.Equal(t, []time.Duration{3 * time.Second}, b.prober.times("ready"))
	})
}

func TestStartupGatesOthers(t *testing.T) {
	run(t, passAfter(25*time.Second), func(t *testing.T, b *fixture) {
		b.ContainerStarted(pod(corev1.Container{
			StartupProbe: httpProbe("start"), LivenessProbe: httpProbe("alive"), ReadinessProbe: httpProbe("ready"),
		}), started("c1"))
		b.wait(26 * time.Second)
		isStarted, known := b.Started("c1")
		require.True(t, known)
		require.False(t, isStarted)
		require.Empty(t, b.prober.times("alive"))
		require.Empty(t, b.prober.times("ready"))
		b.wait(31 * time.Second)
		isStarted, _ = b.Started("c1")
		require.True(t, isStarted)
		require.Equal(t, []time.Duration{30 * time.Second}, b.prober.times("alive"))
		require.Equal(t, []time.Duration{30 * time.Second}, b.prober.times("ready"))
		requireReady(t, b, "c1", true)
		n := len(b.prober.times("start"))
		b.wait(2 * time.Minute)
		require.Len(t, b.prober.times("start"), n, "a startup probe ends with its success")
	})
}

func TestStartupFailureCountsOncePerPeriod(t *testing.T) {
	run(t, passAfter(time.Hour), func(t *testing.T, b *fixture) {
		b.ContainerStarted(pod(corev1.Container{StartupProbe: httpProbe("start")}), started("c1"))
		b.wait(29 * time.Second)
		_, failed := b.Failed("c1")
		require.False(t, failed)
		require.Len(t, b.events(), 2)
		b.wait(31 * time.Second)
		failure, failed := b.Failed("c1")
		require.True(t, failed)
		require.Equal(t, prober.Startup, failure.Type)
		require.Equal(t, []result{{prober.Startup, false, 30 * time.Second}}, b.seen())
	})
}

func TestTerminatingPodIsNotKilledByProbes(t *testing.T) {
	run(t, func(kind string, at time.Duration) (probe.Result, string, error) {
		return passAfter(time.Hour)(kind, at)
	}, func(t *testing.T, b *fixture) {
		p := pod(corev1.Container{
			StartupProbe: httpProbe("start"), LivenessProbe: httpProbe("alive"), ReadinessProbe: httpProbe("ready"),
		})
		b.ContainerStarted(p, started("c1"))
		b.wait(15 * time.Second)
		b.StopLivenessAndStartup(p.UID)
		before := len(b.prober.times("start"))
		b.wait(5 * time.Minute)
		require.Len(t, b.prober.times("start"), before)
		require.Empty(t, b.prober.times("alive"))
		require.NotEmpty(t, b.prober.times("ready"), "readiness goes on to the end")
		_, failed := b.Failed("c1")
		require.False(t, failed)
		b.RemovePod(p.UID)
		_, known := b.Ready("c1")
		require.False(t, known)
	})
}

func TestAdoptedContainerKeepsItsResults(t *testing.T) {
	run(t, passAfter(time.Hour), func(t *testing.T, b *fixture) {
		c := started("c1")
		c.Adopted, c.WasReady, c.WasStarted = true, true, true
		b.ContainerStarted(pod(corev1.Container{
			StartupProbe: httpProbe("start"), ReadinessProbe: httpProbe("ready"),
		}), c)
		requireReady(t, b, "c1", true)
		b.wait(9 * time.Second)
		requireReady(t, b, "c1", true)
		require.LessOrEqual(t, len(b.prober.times("ready")), 1)
		b.wait(time.Minute)
		requireReady(t, b, "c1", false)
		require.Empty(t, b.prober.times("start"))
	})
}

func TestProbesAfterTheClockWasSetBack(t *testing.T) {
	run(t, passAfter(0), func(t *testing.T, b *fixture) {
		c := started("c1")
		c.StartedAt = c.StartedAt.Add(24 * time.Hour)
		c.Adopted, c.WasReady = true, true
		b.ContainerStarted(pod(corev1.Container{LivenessProbe: httpProbe("alive"), ReadinessProbe: httpProbe("ready")}), c)
		b.wait(time.Minute)
		require.NotEmpty(t, b.prober.times("alive"), "it is not left alone for a day")
		require.NotEmpty(t, b.prober.times("ready"))
	})
}

func TestErrorsAreNoResult(t *testing.T) {
	run(t, func(string, time.Duration) (probe.Result, string, error) {
		return probe.Failure, "", errors.New("runtime away")
	}, func(t *testing.T, b *fixture) {
		b.ContainerStarted(pod(corev1.Container{LivenessProbe: httpProbe("alive")}), started("c1"))
		b.wait(61 * time.Second)
		require.Len(t, b.prober.times("alive"), 6*3, "each look is tried three times")
		_, failed := b.Failed("c1")
		require.False(t, failed)
		events := b.events()
		require.Len(t, events, 6)
		require.Contains(t, events[0], "Liveness probe errored and resulted in unknown state: runtime away")
	})
}

func TestWarningPasses(t *testing.T) {
	run(t, func(string, time.Duration) (probe.Result, string, error) {
		return probe.Warning, "moved", nil
	}, func(t *testing.T, b *fixture) {
		b.ContainerStarted(pod(corev1.Container{ReadinessProbe: httpProbe("ready")}), started("c1"))
		b.wait(time.Second)
		requireReady(t, b, "c1", true)
		require.Equal(t, []string{"Warning ProbeWarning Readiness probe warning: moved"}, b.events())
	})
}

func TestStoppedContainerIsForgotten(t *testing.T) {
	run(t, passAfter(time.Hour), func(t *testing.T, b *fixture) {
		p := pod(corev1.Container{ReadinessProbe: httpProbe("ready")})
		b.ContainerStarted(p, started("c1"))
		b.wait(time.Second)
		b.ContainerStopped(p.UID, "c1")
		n := len(b.prober.times("ready"))
		b.wait(time.Minute)
		require.Len(t, b.prober.times("ready"), n)
		record, _ := b.timeline.Record(p.UID)
		require.NotEmpty(t, record.Stages[0].Error)
		b.ContainerStarted(p, started("c1"))
		_, known := b.Ready("c1")
		require.True(t, known)
	})
}

func TestMetricsGoWithThePod(t *testing.T) {
	run(t, passAfter(15*time.Second), func(t *testing.T, b *fixture) {
		p := pod(corev1.Container{LivenessProbe: httpProbe("alive")})
		b.ContainerStarted(p, started("c1"))
		b.wait(25 * time.Second)
		require.Equal(t, map[string]float64{"failed": 1, "successful": 1}, results(t, b.registry))
		b.ContainerStopped(p.UID, "c1")
		require.NotEmpty(t, results(t, b.registry), "they count over restarts of the container")
		b.RemovePod(p.UID)
		families, err := b.registry.Gather()
		require.NoError(t, err)
		require.Empty(t, families)
	})
}

// removalClock calls remove when the time since the begin of a probe is read, once the probe has ended.
type removalClock struct {
	clock.RealClock
	remove func()
}

func (c *removalClock) Since(begin time.Time) time.Duration {
	c.remove()
	return c.RealClock.Since(begin)
}

// TestMetricsStayRemoved removes a Pod at the moment when a probe of it has ended.
func TestMetricsStayRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pod(corev1.Container{LivenessProbe: httpProbe("alive")})
		removal, registry := &removalClock{}, prometheus.NewRegistry()
		m, err := prober.New(prober.Deps{
			Prober: &fakeProber{begin: time.Now(), respond: passAfter(0)}, Registerer: registry, Clock: removal,
		})
		require.NoError(t, err)
		removed := false
		removal.remove = func() { m.RemovePod(p.UID); removed = true }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Start(ctx) }()
		m.ContainerStarted(p, started("c1"))
		time.Sleep(time.Minute)
		cancel()
		require.NoError(t, <-done)
		require.True(t, removed)
		require.Empty(t, results(t, registry))
	})
}

// results are the values of prober_probe_total by their label "result".
func results(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "prober_probe_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "result" {
					values[label.GetValue()] += metric.GetCounter().GetValue()
				}
			}
		}
	}
	return values
}

func TestProbesBeginWithStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looker := &fakeProber{begin: time.Now(), respond: passAfter(0)}
		m, err := prober.New(prober.Deps{Prober: looker})
		require.NoError(t, err)
		m.ContainerStarted(pod(corev1.Container{ReadinessProbe: httpProbe("ready")}), started("c1"))
		time.Sleep(time.Minute)
		require.Empty(t, looker.times("ready"))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- m.Start(ctx) }()
		synctest.Wait()
		require.Len(t, looker.times("ready"), 1)
		cancel()
		require.NoError(t, <-done)
		m.ContainerStarted(pod(corev1.Container{ReadinessProbe: httpProbe("ready")}), started("c2"))
		time.Sleep(time.Minute)
		require.Len(t, looker.times("ready"), 1, "nothing is probed after the end")
	})
}
