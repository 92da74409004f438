package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/bench/harness"
)

func TestShare(t *testing.T) {
	chosen := []harness.Benchmark{{Budget: time.Minute}, {Budget: 3 * time.Minute}}
	require.Equal(t, 10*time.Second, share(40*time.Second, chosen))
	require.Equal(t, 40*time.Second, share(40*time.Second, chosen[1:]), "what others left over")
	require.Equal(t, time.Duration(1), share(-time.Second, chosen), "0 would be no bound")
}

func TestEveryBenchmarkHasABudget(t *testing.T) {
	for _, b := range benchmarks() {
		require.Positive(t, b.Budget, b.Name)
	}
}

func TestChoose(t *testing.T) {
	chosen, err := choose(benchmarks(), []string{"idle", "pod"})
	require.NoError(t, err)
	require.Len(t, chosen, 2)
	require.Equal(t, "idle", chosen[0].Name)
	_, err = choose(benchmarks(), []string{"speed"})
	require.ErrorContains(t, err, "there are pod, idle, ")
}

// TestNothingToMeasureIsAnError has names of cases and variants that no benchmark has, and some that one has.
func TestNothingToMeasureIsAnError(t *testing.T) {
	all := []harness.Benchmark{
		{Name: "a", Cases: []harness.Case{{Name: "small", Variants: []harness.Variant{{Name: "berth"}, {Name: "upstream"}}}}},
		{Name: "b", Cases: []harness.Case{{Name: "large", Variants: []harness.Variant{{Name: "berth"}}}}},
	}
	for _, wrong := range []command{
		{cases: "medium"}, {variants: []string{"bert"}}, {variants: []string{"berth", "bert"}}, {cases: "large", variants: []string{"upstream"}},
	} {
		_, err := wrong.limit(all)
		require.ErrorContains(t, err, "chosen", "%+v", wrong)
	}
	left, err := command{variants: []string{"upstream"}}.limit(all)
	require.NoError(t, err)
	require.Len(t, left, 1, "the others need no set-up")
	require.Equal(t, "a", left[0].Name)
	left, err = command{}.limit(all)
	require.NoError(t, err)
	require.Len(t, left, 2)
}
