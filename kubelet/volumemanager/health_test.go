package volumemanager_test

import (
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/volumemanager"
	csifake "github.com/berth-dev/berth/volume/csi/fake"
)

// TestHealthOfVolumes has a volume that becomes abnormal while it is used, and recovers.
func TestHealthOfVolumes(t *testing.T) {
	f := newDriverFixture(t, func(config *csifake.Config) {
		config.Capabilities = append(config.Capabilities, csipb.NodeServiceCapability_RPC_GET_VOLUME_HEALTH)
	})
	f.createDriverClaim("v")
	f.attach("v")
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(volumemanager.NewCollector(f.Manager)))
	abnormal := func() float64 {
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, family := range families {
			if family.GetName() == "kubelet_volume_stats_health_status_abnormal" {
				return family.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return -1
	}
	require.NoError(t, f.Mount(t.Context(), pod("a", claimVolume("data", "v"))))
	f.eventually("read after the mount", func() bool { return abnormal() == 0 })
	request := csifake.Last[*csipb.NodeGetVolumeHealthRequest](f.driver)
	require.NotEmpty(t, request.VolumePublishPath)
	require.NotEmpty(t, request.StagingTargetPath)
	f.driver.SetHealth(&csipb.VolumeHealth_VolumeHealthEntry{
		Status: csipb.VolumeHealthErrorType_DEGRADED, Reason: "PathLost", Message: "1 of 2 paths works"})
	f.stepUntil(time.Minute, "abnormal", func() bool { return abnormal() == 1 })
	require.Equal(t, "Warning VolumeConditionAbnormal Volume data: PathLost (degraded): 1 of 2 paths works", f.nextEvent())
	f.driver.SetHealth()
	f.stepUntil(time.Minute, "normal", func() bool { return abnormal() == 0 })
	require.Equal(t, corev1.EventTypeNormal+" VolumeConditionNormal Volume data is normal again", f.nextEvent())
	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.requireUnstaged()
}
