package volumemanager_test

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/volumemanager"
	csifake "github.com/berth-dev/berth/volume/csi/fake"
)

func TestMetricsOfClaims(t *testing.T) {
	f := newDriverFixture(t)
	f.createDriverClaim("v")
	f.attach("v")
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(volumemanager.NewCollector(f.Manager)))
	// measured is each metric's value, and how many claims have it.
	measured := func() (values map[string]float64, claims int) {
		t.Helper()
		families, err := registry.Gather()
		require.NoError(t, err)
		values = make(map[string]float64)
		for _, family := range families {
			if name := family.GetName(); name == "volume_manager_total_volumes" || name == "berth_volume_measurements_blocked" {
				continue
			}
			claims = max(claims, len(family.GetMetric()))
			values[family.GetName()] = family.GetMetric()[0].GetGauge().GetValue()
			require.Equal(t, "v", family.GetMetric()[0].GetLabel()[1].GetValue())
		}
		return values, claims
	}
	_, claims := measured()
	require.Zero(t, claims, "nothing is mounted yet")
	require.NoError(t, f.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	require.NoError(t, f.Mount(t.Context(), pod("b", claimVolume("data", "v"))))
	values, claims := measured()
	require.Equal(t, 1, claims, "two Pods, one claim")
	require.Equal(t, map[string]float64{
		"kubelet_volume_stats_capacity_bytes": 100, "kubelet_volume_stats_available_bytes": 60,
		"kubelet_volume_stats_used_bytes": 40, "kubelet_volume_stats_inodes": 10,
		"kubelet_volume_stats_inodes_free": 7, "kubelet_volume_stats_inodes_used": 3,
	}, values)
	require.Equal(t, 1.0, f.collected()["kubelet_volume_metric_collection_duration_seconds "+driverName], "it is asked once")
	require.NoError(t, f.Unmount(t.Context(), "a"))
	require.NoError(t, f.Unmount(t.Context(), "b"))
	_, claims = measured()
	require.Zero(t, claims)
	f.requireUnstaged()
}

// TestVolumesAreCounted has one Pod's volumes mounted while another's waits for its device.
func TestVolumesAreCounted(t *testing.T) {
	f := newDriverFixture(t)
	f.createDriverClaim("v")
	f.attach("v")
	f.createDriverClaim("late")
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(volumemanager.NewCollector(f.Manager)))
	counts := func() map[string]float64 {
		families, err := registry.Gather()
		require.NoError(t, err)
		out := map[string]float64{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				if family.GetName() == "volume_manager_total_volumes" {
					out[metric.GetLabel()[0].GetValue()+" "+metric.GetLabel()[1].GetValue()] = metric.GetGauge().GetValue()
				}
			}
		}
		return out
	}
	require.Empty(t, counts())
	scratch := vol("scratch", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	require.NoError(t, f.Mount(t.Context(), pod("a", claimVolume("data", "v"), scratch)))
	disk := "kubernetes.io/csi:" + f.driver.Config.Name
	mounted := map[string]float64{
		disk + " actual_state_of_world": 1, disk + " desired_state_of_world": 1,
		"kubernetes.io/empty-dir actual_state_of_world": 1, "kubernetes.io/empty-dir desired_state_of_world": 1,
	}
	require.Equal(t, mounted, counts())

	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() { waits <- f.Mount(ctx, pod("b", claimVolume("data", "late"))) }()
	require.Eventually(t, func() bool { return counts()["N/A desired_state_of_world"] == 1 }, waitTimeout, time.Millisecond)
	cancel()
	require.Error(t, <-waits)
	require.NoError(t, f.Unmount(t.Context(), "b"))
	require.Equal(t, mounted, counts())

	f.driver.FailNext("NodeUnpublishVolume", csifake.Fault{Code: codes.Internal})
	go func() { waits <- f.Unmount(t.Context(), "a") }()
	require.Eventually(t, func() bool {
		return maps.Equal(counts(), map[string]float64{
			disk + " actual_state_of_world": 1, "kubernetes.io/empty-dir actual_state_of_world": 1,
		})
	}, waitTimeout, time.Millisecond, "it still exists, and no Pod uses it")
	require.Eventually(t, func() bool {
		f.clock.Step(time.Second)
		return len(counts()) == 0
	}, waitTimeout, time.Millisecond)
	require.NoError(t, <-waits)
	f.requireUnstaged()
}
