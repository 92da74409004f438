package volumemanager_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"

	"github.com/berth-dev/berth/volume"
)

// mismatchedDisk is a plugin whose disks have another file system than their volumes.
type mismatchedDisk struct{}

func (mismatchedDisk) Name() string { return "example.com/disk" }

func (mismatchedDisk) CanSupport(spec volume.Spec) bool {
	return spec.PV != nil && spec.PV.Spec.HostPath != nil
}

func (mismatchedDisk) SetUp(context.Context, volume.Request) (volume.Mount, error) {
	return volume.Mount{}, fmt.Errorf("mount the disk: %w", mount.NewMountError(mount.FilesystemMismatch, "wrong fs type"))
}

func (mismatchedDisk) TearDown(context.Context, string) error { return nil }

// TestMismatchOfFileSystemsIsReportedForTheVolume has a disk with another file system than its PersistentVolume says.
func TestMismatchOfFileSystemsIsReportedForTheVolume(t *testing.T) {
	f := newDriverFixture(t)
	f.stop()
	f.others = []volume.Plugin{mismatchedDisk{}}
	f.start()
	f.createDriverClaim("v", func(pv *corev1.PersistentVolume) {
		pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
	})
	done := f.startMount(pod("a", claimVolume("data", "v")))
	require.Contains(t, f.nextEvent(), "Warning FailedMount MountVolume.SetUp failed for volume \"data\"")
	require.Equal(t, "Warning FailedMountOnFilesystemMismatch MountVolume failed for volume \"data\" : mount the disk: "+
		"wrong fs type", f.nextEvent())
	require.NoError(t, f.Unmount(t.Context(), "a"))
	require.Error(t, f.result(done))
}
