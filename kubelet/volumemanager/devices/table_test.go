package devices_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/keyed"
	"github.com/berth-dev/berth/kubelet/volumemanager/devices"
	"github.com/berth-dev/berth/volume"
)

func TestExclusiveDeviceIsOnePods(t *testing.T) {
	table := devices.New(devices.Deps{Operations: keyed.New(keyed.Deps{}, keyed.Config{})})
	disk := volume.Device{Name: "disk"}
	first, second := devices.VolumeRef{PodUID: "a", Dir: "/a"}, devices.VolumeRef{PodUID: "b", Dir: "/b"}
	require.NoError(t, table.Acquire(nil, disk, first, true, devices.Label{}))
	require.NoError(t, table.Acquire(nil, disk, first, true, devices.Label{}), "again by the same volume")
	var inUse *devices.InUseError
	require.ErrorAs(t, table.Acquire(nil, disk, second, true, devices.Label{}), &inUse)
	require.Equal(t, "disk", inUse.Device)
	require.Empty(t, inUse.Freed)
	table.Release("disk", first)
	<-inUse.Freed
	require.NoError(t, table.Acquire(nil, disk, second, true, devices.Label{}))
}

func TestDeviceThatMustBeAttachedNeedsANodeStatus(t *testing.T) {
	table := devices.New(devices.Deps{Operations: keyed.New(keyed.Deps{}, keyed.Config{})})
	err := table.Acquire(nil, volume.Device{Name: "disk", Attach: true}, devices.VolumeRef{PodUID: "a"}, false, devices.Label{})
	require.ErrorContains(t, err, "does not report which volumes are in use")
}
