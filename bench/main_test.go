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
	require.ErrorContains(t, err, "there are pod, idle, volumes, cluster")
}
