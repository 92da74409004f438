package csi_test

import (
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/csi/fake"
)

// TestEveryNodeCapability mounts, measures, expands and unmounts a volume with a driver that has all capabilities but one, and
// with one that has none.
func TestEveryNodeCapability(t *testing.T) {
	const none = csipb.NodeServiceCapability_RPC_UNKNOWN
	calls := map[csipb.NodeServiceCapability_RPC_Type]string{
		csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME: "Stage", csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS: "Stats",
		csipb.NodeServiceCapability_RPC_EXPAND_VOLUME: "Expand", csipb.NodeServiceCapability_RPC_GET_VOLUME_HEALTH: "VolumeHealth",
		csipb.NodeServiceCapability_RPC_GET_STORAGE_HEALTH: "StorageHealth",
	}
	for number, name := range csipb.NodeServiceCapability_RPC_Type_name {
		t.Run(name, func(t *testing.T) {
			lacks := csipb.NodeServiceCapability_RPC_Type(number)
			var has []csipb.NodeServiceCapability_RPC_Type
			for other := range csipb.NodeServiceCapability_RPC_Type_name {
				if lacks != none && other != number {
					has = append(has, csipb.NodeServiceCapability_RPC_Type(other))
				}
			}
			f := newFixture(t, has...)
			f.start()
			spec := persistent("pv")
			spec.PV.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
			lifeOfAVolume(t, f, spec, lacks)
			for capability, call := range calls {
				if lacks == capability || lacks == none {
					for _, made := range f.driver.Calls() {
						require.False(t, strings.Contains(made, call), "%s without %s", made, name)
					}
				}
			}
		})
	}
}

func lifeOfAVolume(t *testing.T, f *fixture, spec volume.Spec, lacks csipb.NodeServiceCapability_RPC_Type) {
	t.Helper()
	lacksIt := func(capability csipb.NodeServiceCapability_RPC_Type) bool {
		return lacks == capability || lacks == csipb.NodeServiceCapability_RPC_UNKNOWN
	}
	device, err := f.Device(t.Context(), spec)
	require.NoError(t, err)
	group := ptr.To(int64(77))
	if device.Name != "" {
		require.NoError(t, f.Stage(t.Context(), volume.StageRequest{DeviceName: device.Name, Spec: spec, FSGroup: group}))
	}
	request := f.request("uid", spec)
	request.FSGroup = group
	mount, err := f.SetUp(t.Context(), request)
	require.NoError(t, err)
	publish := fake.Last[*csipb.NodePublishVolumeRequest](f.driver)
	require.Equal(t, lacksIt(csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME), publish.StagingTargetPath == "")
	require.Equal(t, lacksIt(csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP), publish.VolumeCapability.GetMount().VolumeMountGroup == "")
	mode := csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	if lacksIt(csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER) {
		mode = csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	}
	require.Equal(t, mode, publish.VolumeCapability.AccessMode.Mode)
	stats, err := f.Stats(t.Context(), spec, mount.Path)
	require.NoError(t, err)
	require.Equal(t, lacksIt(csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS), stats == nil)
	expanded, err := f.Expand(t.Context(), volume.ExpandRequest{Spec: spec, Path: mount.Path})
	require.NoError(t, err)
	require.Equal(t, !lacksIt(csipb.NodeServiceCapability_RPC_EXPAND_VOLUME), expanded)
	require.NoError(t, f.TearDown(t.Context(), request.Dir))
	if device.Name != "" {
		require.NoError(t, f.Unstage(t.Context(), device.Name))
	}
}

// TestUsageOfInlineVolume: the driver knows an inline volume by the handle with which it was published.
func TestUsageOfInlineVolume(t *testing.T) {
	f := newFixture(t, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS, csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	f.start()
	spec := inline(&corev1.CSIVolumeSource{Driver: driverName})
	request := f.request("uid", spec)
	mount, err := f.SetUp(t.Context(), request)
	require.NoError(t, err)
	stats, err := f.Stats(t.Context(), spec, mount.Path)
	require.NoError(t, err)
	require.Equal(t, &volume.Stats{Capacity: 100, Available: 60, Used: 40, Inodes: 10, InodesFree: 7, InodesUsed: 3}, stats)
	call := fake.Last[*csipb.NodeGetVolumeStatsRequest](f.driver)
	require.Equal(t, fake.Last[*csipb.NodePublishVolumeRequest](f.driver).VolumeId, call.VolumeId)
	require.Equal(t, mount.Path, call.VolumePath)
	require.Empty(t, call.StagingTargetPath, "it is not staged")
	require.NoError(t, f.TearDown(t.Context(), request.Dir))
}

// TestResponseWithoutUsage is no usage of 0 bytes.
func TestResponseWithoutUsage(t *testing.T) {
	f := newFixture(t, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS)
	f.driver.Config.NoUsage = true
	f.start()
	spec := inline(&corev1.CSIVolumeSource{Driver: driverName})
	request := f.request("uid", spec)
	mount, err := f.SetUp(t.Context(), request)
	require.NoError(t, err)
	_, err = f.Stats(t.Context(), spec, mount.Path)
	require.ErrorContains(t, err, "responded to NodeGetVolumeStats of volume")
	require.NoError(t, f.TearDown(t.Context(), request.Dir))
}
