package metrics_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/timeline/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStagesAreCounted(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(100, 0))
	recorder := timeline.New(clock, 0)
	stages := metrics.New()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(stages))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- stages.Start(ctx, recorder) }()

	ref := timeline.Ref{Kind: "Pod", Name: "web", UID: "a"}
	require.Eventually(t, func() bool { return recorder.Subscriptions() == 1 }, time.Minute, time.Millisecond)

	span := recorder.Begin(ref, "kubelet", timeline.StageSandbox, "")
	clock.Step(3 * time.Second)
	span.AddWait(2 * time.Second)
	span.End(errors.New("no address left"))
	recorder.Begin(ref, "kubelet", timeline.StageImage, "main") // goes on: not counted
	require.Eventually(t, func() bool { return sample(t, registry, timeline.StageSandbox, "error") == 3 }, time.Minute, time.Millisecond)
	require.Zero(t, sample(t, registry, timeline.StageImage, "success"))
	require.InDelta(t, 2, sample(t, registry, timeline.StageSandbox, ""), 1e-9, "the wait")
	cancel()
	require.NoError(t, <-done)
}

// sample is the sum of the histogram with the stage and result (of waits if the result is empty); of an empty sum, the
// count.
func sample(t *testing.T, registry *prometheus.Registry, stage, result string) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			labels := make(map[string]string)
			for _, pair := range metric.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			if labels["stage"] == stage && labels["result"] == result {
				if sum := metric.GetHistogram().GetSampleSum(); sum > 0 {
					return sum
				}
				return float64(metric.GetHistogram().GetSampleCount())
			}
		}
	}
	return 0
}
