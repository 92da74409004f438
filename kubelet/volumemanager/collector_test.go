package volumemanager_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/volumemanager"
)

func TestMetricsOfClaims(t *testing.T) {
	w := deviceWorld(t)
	w.device("v")
	w.attach("v")
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(volumemanager.NewCollector(w.Manager)))
	// measured is each metric's value, and how many claims have it.
	measured := func() (values map[string]float64, claims int) {
		t.Helper()
		families, err := registry.Gather()
		require.NoError(t, err)
		values = make(map[string]float64)
		for _, family := range families {
			claims = max(claims, len(family.GetMetric()))
			values[family.GetName()] = family.GetMetric()[0].GetGauge().GetValue()
			require.Equal(t, "v", family.GetMetric()[0].GetLabel()[1].GetValue())
		}
		return values, claims
	}
	_, claims := measured()
	require.Zero(t, claims, "nothing is mounted yet")
	require.NoError(t, w.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	require.NoError(t, w.Mount(t.Context(), pod("b", claimVolume("data", "v"))))
	values, claims := measured()
	require.Equal(t, 1, claims, "two Pods, one claim")
	require.Equal(t, map[string]float64{
		"kubelet_volume_stats_capacity_bytes": 100, "kubelet_volume_stats_available_bytes": 60,
		"kubelet_volume_stats_used_bytes": 40, "kubelet_volume_stats_inodes": 10,
		"kubelet_volume_stats_inodes_free": 7, "kubelet_volume_stats_inodes_used": 3,
	}, values)
	require.NoError(t, w.Unmount(t.Context(), "a"))
	require.NoError(t, w.Unmount(t.Context(), "b"))
	_, claims = measured()
	require.Zero(t, claims)
	w.allGone()
}
