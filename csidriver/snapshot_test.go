package csidriver_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

func snapshotSource(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
}

func volumeSource(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

func TestSnapshotsAndClonesOfMountedVolumes(t *testing.T) {
	forEachFilesystem(t, func(t *testing.T, fsType string, size int64) {
		w := newFixture(t)
		w.start()
		snapshotsAndClones(t, w, fsType, size)
	})
}

// A clone may request what its source requested, which the driver rounded up: it becomes as large as the source.
func TestCloneOfAVolumeThatWasRoundedUp(t *testing.T) {
	w := newFixture(t)
	w.start()
	create := func(name string, source *csi.VolumeContentSource) *csi.Volume {
		resp, err := w.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: 1}, VolumeContentSource: source,
			VolumeCapabilities: []*csi.VolumeCapability{filesystem("")},
		})
		require.NoError(t, err)
		return resp.GetVolume()
	}
	source := create("source", nil)
	require.Greater(t, source.GetCapacityBytes(), int64(1))
	clone := create("clone", volumeSource(source.GetVolumeId()))
	require.Equal(t, source.GetCapacityBytes(), clone.GetCapacityBytes())
}

func snapshotsAndClones(t *testing.T, w *fixture, fsType string, size int64) {
	t.Helper()
	d := w.create("a", size, filesystem(fsType))
	d.mount()
	d.write("file", "first") // not synced: the snapshot has it all the same
	snap, err := w.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: d.id})
	require.NoError(t, err)
	require.True(t, snap.GetSnapshot().GetReadyToUse())
	d.write("file", "second") // works, so it is not frozen any more

	restored := w.create("restored", size, filesystem(fsType), snapshotSource(snap.GetSnapshot().GetSnapshotId()))
	cloned := w.create("cloned", 2*size, filesystem(fsType), volumeSource(d.id))
	restored.mount()
	cloned.mount() // beside its source, with the same UUID
	require.Equal(t, "first", restored.read("file"))
	require.Equal(t, "second", cloned.read("file"))
	require.Greater(t, cloned.total(), d.total()*3/2, "the clone's filesystem has grown to its volume")
	cloned.write("file", "third")
	require.Equal(t, "second", d.read("file"))

	_, err = w.DeleteSnapshot(t.Context(),
		&csi.DeleteSnapshotRequest{SnapshotId: snap.GetSnapshot().GetSnapshotId()})
	require.NoError(t, err)
	for _, v := range []*disk{d, restored, cloned} {
		v.unmount()
		require.NoError(t, v.remove())
	}
}

func TestReflinks(t *testing.T) {
	requireProgram(t, "mkfs.xfs")
	w := newFixture(t)
	w.mountRoot("xfs", 600*mib)
	w.config.Thin = true
	w.start()
	snapshotsAndClones(t, w, "ext4", 32*mib)

	d := w.create("raw", 64*mib, rawBlock())
	d.mount()
	device, err := os.OpenFile(d.target, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = device.Write(make([]byte, 48*mib))
	require.NoError(t, errors.Join(err, device.Sync()))
	before := w.free()
	_, err = device.WriteAt([]byte("not synced"), 0)
	require.NoError(t, err)
	// With reflinks even a raw volume in use is copied at one moment, and uses no disk space.
	taken, err := w.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: d.id})
	require.NoError(t, err)
	require.NoError(t, device.Close())
	require.Greater(t, w.free(), before-8*mib)
	image, err := os.Open(filepath.Join(w.config.Root, "snapshots", taken.GetSnapshot().GetSnapshotId(), "disk.img"))
	require.NoError(t, err)
	text := make([]byte, len("not synced"))
	_, err = image.ReadAt(text, 0)
	require.NoError(t, errors.Join(err, image.Close()))
	require.Equal(t, "not synced", string(text), "what the container has written is in the snapshot")
	d.unmount()
}

func TestRawVolumesInUseAreNotCopiedPiecemeal(t *testing.T) {
	w := newFixture(t)
	w.mountRoot("tmpfs", 128*mib)
	w.start()
	d := w.create("raw", 16*mib, rawBlock())
	d.mount()
	_, err := w.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: d.id})
	requireCode(t, codes.FailedPrecondition, err)
	require.NoError(t, d.unpublish())
	_, err = w.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: d.id})
	require.NoError(t, err)
	require.NoError(t, d.publish(d.target, false))
	d.unmount()
}

func TestAVolumeLeftFrozenIsThawed(t *testing.T) {
	w := newFixture(t)
	w.start()
	d := w.create("a", 16*mib, filesystem("ext4"))
	d.mount()
	w.stop()
	const freeze, thaw = 0xC0045877, 0xC0045878
	dir, err := os.Open(d.target)
	require.NoError(t, err)
	defer dir.Close()
	require.NoError(t, unix.IoctlSetInt(int(dir.Fd()), freeze, 0)) // what kill -9 leaves in the middle of a copy
	w.start()
	require.ErrorIs(t, unix.IoctlSetInt(int(dir.Fd()), thaw, 0), unix.EINVAL, "it is thawed already")
	require.NoError(t, dir.Close())
	d.unmount()
}

func TestOnlyItsOwnFilesystemIsFrozen(t *testing.T) {
	w := newFixture(t)
	w.start()
	d := w.create("a", 16*mib, filesystem("ext4"))
	d.mount()
	d.write("file", "first")
	hide := func(name string, paths ...string) error {
		for _, path := range paths {
			require.NoError(t, unix.Mount("tmpfs", path, "tmpfs", 0, ""))
		}
		_, err := w.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: d.id})
		for _, path := range paths {
			require.NoError(t, os.WriteFile(filepath.Join(path, "free"), nil, 0o600))
			require.NoError(t, unix.Unmount(path, 0))
		}
		return err
	}
	err := hide("both", d.target, d.staging)
	requireCode(t, codes.Internal, err)
	require.ErrorContains(t, err, "hidden")
	require.NoError(t, hide("target", d.target))
	require.NoError(t, hide("staging", d.staging))
	d.unmount()
}
