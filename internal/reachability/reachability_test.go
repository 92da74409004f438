package reachability_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/reachability"
)

func load(t *testing.T, api ...string) *reachability.Module {
	t.Helper()
	module, err := reachability.Load("testdata/module", api)
	require.NoError(t, err)
	return module
}

func TestProduction(t *testing.T) {
	used := []string{
		"(*worker.Queue[T]).Add", "(*worker.Worker).Run", "(*worker.Worker).String", "(*worker.Worker).handle", "cmd.main",
		"worker.Map", "worker.New", "worker.prepare",
	}
	require.Equal(t, used, slices.Sorted(maps.Keys(load(t).Production())))
	withAPI := append([]string{"(*api.Client).Get", "api.get"}, used...)
	require.ElementsMatch(t, withAPI, slices.Collect(maps.Keys(load(t, "api").Production())))
}

func TestTestCalls(t *testing.T) {
	module := load(t)
	for name, want := range map[string][]string{
		"TestRun":     {"(*worker.Worker).Run", "worker.Map", "worker.New"},
		"TestUnwired": {"(*worker.Worker).Unwired", "worker.New"},
	} {
		calls, found := module.TestCalls("worker", name)
		require.True(t, found, name)
		require.Equal(t, want, calls, name)
	}
	_, found := module.TestCalls("api", "TestRun")
	require.False(t, found)
}

func TestLoadOfAModuleThatDoesNotExist(t *testing.T) {
	_, err := reachability.Load("testdata/none", nil)
	require.Error(t, err)
}
