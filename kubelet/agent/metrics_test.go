package agent

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMetricsProvider serves the metrics of containers from the kernel and from the runtime.
func TestMetricsProvider(t *testing.T) {
	for provider, fromRuntime := range map[string]bool{"cadvisor": false, "cri": true} {
		f := newFixture(t, func(_ *Deps, c *Config) { c.Server.RuntimeMetrics = fromRuntime })
		families, err := f.agent.base.metrics.main.Gather()
		require.NoError(t, err)
		var served []string
		for _, family := range families {
			if family.GetName() == "kubelet_metrics_provider" {
				served = append(served, family.GetMetric()[0].GetLabel()[0].GetValue())
			}
		}
		require.Equal(t, []string{provider}, served)
	}
}
