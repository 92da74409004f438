package csidriver_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/csidriver"
)

func TestLifeOfAVolume(t *testing.T) {
	forEachFilesystem(t, func(t *testing.T, fsType string, size int64) {
		w := newFixture(t)
		w.start()
		d := w.create("a", size, filesystem(fsType))
		d.mount()
		require.Len(t, w.loops(), 1)
		require.Contains(t, w.loops(), d.context[csidriver.ContextDevice])
		d.write("file", "kept")
		requireCode(t, codes.FailedPrecondition, d.detach()) // still mounted
		requireCode(t, codes.FailedPrecondition, d.remove())
		d.unmount()
		require.Empty(t, w.loops())
		require.NoFileExists(t, d.target)

		d.mount()
		require.Equal(t, "kept", d.read("file"))
		other := filepath.Join(w.dir, "second")
		require.NoError(t, d.publish(other, true))
		require.ErrorIs(t, os.WriteFile(filepath.Join(other, "file"), nil, 0o600), unix.EROFS)
		requireCode(t, codes.AlreadyExists, d.publish(other, false))
		_, err := w.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: d.id, TargetPath: other})
		require.NoError(t, err)
		d.unmount()
		require.NoError(t, d.remove())
		require.NoError(t, d.remove())
		entries, err := os.ReadDir(filepath.Join(w.config.Root, "volumes"))
		require.NoError(t, err)
		require.Empty(t, entries)
	})
}

func TestTheSizeIsALimit(t *testing.T) {
	w := newFixture(t)
	w.start()
	d := w.create("a", 16*mib, filesystem("ext4"))
	d.mount()
	defer d.unmount()
	require.LessOrEqual(t, d.total(), int64(16*mib))
	err := os.WriteFile(filepath.Join(d.target, "large"), make([]byte, 20*mib), 0o600)
	require.ErrorIs(t, err, unix.ENOSPC)
}

func TestARestartAtAnyPointChangesNothing(t *testing.T) {
	w := newFixture(t)
	w.start()
	d := w.create("a", 16*mib, filesystem("ext4"))
	for _, step := range []func() error{
		func() error { return d.attach(false) },
		d.stage,
		func() error { return d.publish(d.target, false) },
		d.unpublish, d.unstage, d.detach, d.remove,
	} {
		w.start()
		require.NoError(t, step())
		w.start()
		require.NoError(t, step(), "again")
		require.LessOrEqual(t, len(w.loops()), 1)
	}
	require.Empty(t, w.loops())
}

func TestRootBelongsToOneDriver(t *testing.T) {
	w := newFixture(t)
	w.start()
	other := w.config
	other.Endpoint += "2"
	err := csidriver.Serve(t.Context(), csidriver.Deps{}, other)
	require.ErrorContains(t, err, "another driver")
}

func TestUnfinishedWorkIsDoneAnew(t *testing.T) {
	w := newFixture(t)
	w.start()
	d := w.create("a", 16*mib, filesystem("ext4"))
	w.stop()
	// What kill -9 leaves: half an image, half a filesystem.
	half := filepath.Join(w.config.Root, "tmp", "vol-half")
	require.NoError(t, os.Mkdir(half, 0o700))
	dir := filepath.Join(w.config.Root, "volumes", d.id)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "formatting"), nil, 0o600))
	image, err := os.OpenFile(filepath.Join(dir, "disk.img"), os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = image.WriteAt([]byte("half of something"), 4096)
	require.NoError(t, err)
	require.NoError(t, image.Close())

	w.start()
	require.NoDirExists(t, half)
	d.mount()
	require.NoFileExists(t, filepath.Join(dir, "formatting"))
	d.unmount()
}

func TestForeignDataIsNeverFormatted(t *testing.T) {
	w := newFixture(t)
	w.start()
	d := w.create("a", 16*mib, rawBlock())
	d.mount()
	device, err := os.OpenFile(d.target, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = device.WriteAt([]byte("precious"), 12*mib)
	require.NoError(t, errors.Join(err, device.Sync(), device.Close()))
	d.unmount()

	d.capability = filesystem("ext4")
	require.NoError(t, d.attach(false))
	requireCode(t, codes.FailedPrecondition, d.stage())
	require.NoError(t, d.detach())
	d.capability = rawBlock()
	d.mount()
	device, err = os.Open(d.target)
	require.NoError(t, err)
	got := make([]byte, 8)
	_, err = device.ReadAt(got, 12*mib)
	require.NoError(t, errors.Join(err, device.Close()))
	require.Equal(t, "precious", string(got))
	require.Equal(t, int64(16*mib), d.total())
	d.unmount()
}

func TestAfterARebootStagingAttaches(t *testing.T) {
	w := newFixture(t)
	w.start()
	d := w.create("a", 16*mib, filesystem("ext4"))
	d.mount()
	d.write("file", "kept")
	require.NoError(t, d.unpublish())
	require.NoError(t, d.unstage())
	w.stop()
	w.cleanup() // the kernel forgets its loop devices
	require.Empty(t, w.loops())
	w.start()
	require.NoError(t, d.stage())
	require.NoError(t, d.publish(d.target, false))
	require.Equal(t, "kept", d.read("file"))
	d.unmount()
}

// A mount namespace that is created while the volume is mounted holds a copy of the mount, and with it the
// device. The next use must be of the same device: what was written through it may not be in the image yet.
func TestAMountLeakedToAnotherNamespace(t *testing.T) {
	w := newFixture(t)
	w.start()
	d := w.create("a", 16*mib, filesystem("ext4"))
	d.mount()
	other := exec.Command("unshare", "--mount", "--propagation", "private", "cat")
	input, err := other.StdinPipe()
	require.NoError(t, err)
	output, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	_, err = input.Write([]byte("x")) // cat answers once the namespace is made
	require.NoError(t, err)
	_, err = output.Read(make([]byte, 1))
	require.NoError(t, err)

	device := d.context[csidriver.ContextDevice]
	d.write("file", "kept")
	d.unmount()
	volumes, err := w.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	require.NoError(t, err)
	require.Empty(t, volumes.GetEntries()[0].GetStatus().GetPublishedNodeIds())
	requireCode(t, codes.Aborted, d.attach(true))
	d.mount()
	require.Equal(t, device, d.context[csidriver.ContextDevice])
	require.Equal(t, "kept", d.read("file"))
	require.Len(t, w.loops(), 1)
	require.NoError(t, input.Close())
	require.NoError(t, other.Wait())
	d.unmount()
}

func TestReadonlyPublication(t *testing.T) {
	w := newFixture(t)
	w.start()
	d := w.create("a", 16*mib, filesystem("ext4"))
	require.NoError(t, d.attach(true))
	requireCode(t, codes.FailedPrecondition, d.stage()) // there is no filesystem yet
	requireCode(t, codes.AlreadyExists, d.attach(false))
	require.NoError(t, d.detach())
	d.mount()
	d.write("file", "kept")
	d.unmount()
	err := d.attach(true)
	for status.Code(err) == codes.Aborted { // another mount namespace may have a copy of the mount for a moment
		err = d.attach(true)
	}
	require.NoError(t, err)
	require.NoError(t, d.stage())
	require.NoError(t, d.publish(d.target, false))
	require.Equal(t, "kept", d.read("file"))
	require.ErrorIs(t, os.WriteFile(filepath.Join(d.target, "new"), nil, 0o600), unix.EROFS)
	d.unmount()
}

func TestExpansion(t *testing.T) {
	forEachFilesystem(t, func(t *testing.T, fsType string, size int64) {
		w := newFixture(t)
		w.start()
		d := w.create("a", size, filesystem(fsType))
		d.mount()
		d.write("file", "kept")
		before := d.total()
		expand := func(size int64) (*csi.ControllerExpandVolumeResponse, error) {
			return w.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: d.id, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapability: d.capability})
		}
		grow := func() error {
			_, err := w.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
				VolumeId: d.id, VolumePath: d.target, StagingTargetPath: d.staging,
				CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * size}, VolumeCapability: d.capability})
			return err
		}
		require.NoError(t, ignoreRange(grow()))
		for range 2 {
			resp, err := expand(2 * size)
			require.NoError(t, err)
			require.Equal(t, 2*size, resp.GetCapacityBytes())
			require.True(t, resp.GetNodeExpansionRequired())
		}
		// ext4 grows while mounted only for who has CAP_SYS_RESOURCE; else it does at the next staging, or the one after
		// that if another mount namespace has a copy of the mount just then.
		for err := grow(); err != nil; err = grow() {
			require.ErrorContains(t, err, "CAP_SYS_RESOURCE")
			requireCode(t, codes.FailedPrecondition, err)
			t.Log("without CAP_SYS_RESOURCE: growing at the next staging")
			d.unmount()
			d.mount()
		}
		require.Greater(t, d.total(), before*3/2)
		require.Equal(t, "kept", d.read("file"))
		resp, err := expand(size)
		require.NoError(t, err)
		require.Equal(t, 2*size, resp.GetCapacityBytes(), "it never shrinks")
		d.unmount()
	})
}

// ignoreRange accepts that a volume cannot grow on the node before it has grown at the controller.
func ignoreRange(err error) error {
	if status.Code(err) == codes.OutOfRange {
		return nil
	}
	return errors.New("grown to more than the volume has")
}

func TestDiskSpaceIsReservedOnce(t *testing.T) {
	w := newFixture(t)
	w.mountRoot("tmpfs", 64*mib)
	w.start()
	capacity := func() int64 {
		resp, err := w.GetCapacity(t.Context(), &csi.GetCapacityRequest{})
		require.NoError(t, err)
		return resp.GetAvailableCapacity()
	}
	before := capacity()
	require.Greater(t, before, int64(60*mib))
	d := w.create("a", 48*mib, rawBlock())
	require.Less(t, capacity(), int64(17*mib), "although the image is sparse")
	_, err := w.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name: "b", CapacityRange: &csi.CapacityRange{RequiredBytes: 32 * mib},
		VolumeCapabilities: []*csi.VolumeCapability{rawBlock()}})
	requireCode(t, codes.ResourceExhausted, err)
	_, err = w.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: d.id, CapacityRange: &csi.CapacityRange{RequiredBytes: 80 * mib}})
	requireCode(t, codes.ResourceExhausted, err)
	require.NoError(t, d.remove())
	require.InDelta(t, before, capacity(), 1*mib)

	elsewhere, err := w.GetCapacity(t.Context(), &csi.GetCapacityRequest{
		AccessibleTopology: &csi.Topology{Segments: map[string]string{csidriver.TopologyKey: "other"}}})
	require.NoError(t, err)
	require.Zero(t, elsewhere.GetAvailableCapacity())
}

func TestSingleWriter(t *testing.T) {
	w := newFixture(t)
	w.start()
	d := w.create("a", 16*mib, filesystem("ext4"))
	d.capability.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	d.mount()
	// A part of the volume mounted elsewhere, as for a subPath, is no publication.
	require.NoError(t, os.Mkdir(filepath.Join(d.target, "sub"), 0o700))
	sub := filepath.Join(w.dir, "sub")
	require.NoError(t, os.Mkdir(sub, 0o700))
	require.NoError(t, unix.Mount(filepath.Join(d.target, "sub"), sub, "", unix.MS_BIND, ""))
	require.NoError(t, d.publish(d.target, false))
	requireCode(t, codes.FailedPrecondition, d.publish(filepath.Join(w.dir, "second"), false))
	require.NoError(t, d.unpublish())
	require.NoError(t, d.publish(d.target, false))
	require.NoError(t, unix.Unmount(sub, 0))
	d.unmount()
}
