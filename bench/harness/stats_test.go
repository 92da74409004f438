package harness_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/bench/harness"
)

func TestQuantile(t *testing.T) {
	values := []float64{40, 10, 30, 20}
	for q, want := range map[float64]float64{0: 10, 0.5: 25, 1: 40, 0.25: 17.5} {
		require.InDelta(t, want, harness.Quantile(values, q), 1e-9, "quantile %v", q)
	}
	require.Equal(t, []float64{40, 10, 30, 20}, values, "the caller's order")
	require.True(t, math.IsNaN(harness.Quantile(nil, 0.5)))
}

func TestSummarize(t *testing.T) {
	require.Equal(t, harness.Summary{Count: 3, Min: 1, Median: 2, Max: 9}, harness.Summarize([]float64{9, 1, 2}))
}

func sampled(better harness.Direction, values map[string][]float64) *harness.CaseData {
	c := &harness.CaseData{Variants: []string{"ours", "theirs"}, Metrics: []harness.Metric{{Name: "m", Better: better}}}
	for _, variant := range c.Variants {
		for round, value := range values[variant] {
			c.Samples = append(c.Samples,
				harness.SampleData{Variant: variant, Round: round, Values: map[string]float64{"m": value}})
		}
	}
	return c
}

func TestVerdict(t *testing.T) {
	half := func(ratio float64) harness.Target {
		return harness.Target{Metric: "m", Against: "theirs", Ratio: ratio}
	}
	values := map[string][]float64{"ours": {1, 5, 3}, "theirs": {6, 6}}
	for _, tc := range []struct {
		name         string
		better       harness.Direction
		target       harness.Target
		values       map[string][]float64
		ratio        float64
		met, unknown bool
	}{
		{"lower, met", harness.Lower, half(0.5), values, 0.5, true, false},
		{"lower, missed", harness.Lower, half(0.4), values, 0.5, false, false},
		{"higher, missed", harness.Higher, half(2), values, 0.5, false, false},
		{"higher, met", harness.Higher, half(0.5), values, 0.5, true, false},
		{"absolute", harness.Lower, harness.Target{Metric: "m", Ratio: 3}, values, 3, true, false},
		{"no other", harness.Lower, half(1),
			map[string][]float64{"ours": {1}}, 0, false, true},
		{"no such metric", harness.Lower, harness.Target{Metric: "x", Ratio: 1}, values, 0, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ratio, met, known := sampled(tc.better, tc.values).Verdict(tc.target)
			require.InDelta(t, tc.ratio, ratio, 1e-9)
			require.Equal(t, tc.met, met)
			require.Equal(t, !tc.unknown, known)
		})
	}
}
