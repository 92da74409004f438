package csidriver_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/berth-dev/berth/csidriver"
)

// capacity returns what the driver has for a class with these parameters.
func (w *fixture) capacity(parameters map[string]string) *csi.GetCapacityResponse {
	w.t.Helper()
	resp, err := w.GetCapacity(w.t.Context(), &csi.GetCapacityRequest{Parameters: parameters})
	require.NoError(w.t, err)
	return resp
}

func (w *fixture) snapshot(name string, d *disk) (*csi.VolumeContentSource, error) {
	w.t.Helper()
	resp, err := w.CreateSnapshot(w.t.Context(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: d.id})
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: resp.GetSnapshot().GetSnapshotId()}}}, err
}

// overwrite writes all of a raw block volume, past the page cache, and fails the test at an I/O error.
func (d *disk) overwrite(content byte) {
	d.w.t.Helper()
	device, err := os.OpenFile(d.target, os.O_WRONLY, 0)
	require.NoError(d.w.t, err)
	size, err := device.Seek(0, 2)
	require.NoError(d.w.t, err)
	chunk := bytes.Repeat([]byte{content}, mib)
	for offset := int64(0); offset < size; offset += int64(len(chunk)) {
		_, err := device.WriteAt(chunk[:min(int64(len(chunk)), size-offset)], offset)
		require.NoError(d.w.t, err)
	}
	require.NoError(d.w.t, errors.Join(device.Sync(), device.Close()), "the disk was full")
	// The loop device writes to the page cache of its image, whose errors show here.
	image, err := os.Open(d.image())
	require.NoError(d.w.t, err)
	require.NoError(d.w.t, errors.Join(unix.Fsync(int(image.Fd())), image.Close()), "the disk was full")
}

// TestNoVolumeMeetsAFullDisk promises all of a disk: volumes, snapshots, what was restored of one, and more than once. Then it
// writes every block of every volume.
func TestNoVolumeMeetsAFullDisk(t *testing.T) {
	for fsType, size := range map[string]int64{"xfs": 400 * mib, "ext4": 300 * mib} {
		t.Run(fsType, func(t *testing.T) {
			requireProgram(t, "mkfs."+fsType)
			w := newFixture(t)
			w.mountRoot(fsType, size)
			w.start()
			first := w.create("first", 32*mib, rawBlock())
			first.mount()
			first.overwrite(1)
			require.NoError(t, first.unpublish())
			before := w.capacity(nil).GetAvailableCapacity()
			source, err := w.snapshot("s", first)
			require.NoError(t, err)
			require.InDelta(t, before-32*mib, w.capacity(nil).GetAvailableCapacity(), 2*mib, "the volume needs new blocks now")
			restored := w.create("restored", 32*mib, rawBlock(), source)
			require.InDelta(t, before-64*mib, w.capacity(nil).GetAvailableCapacity(), 2*mib)
			rest := w.create("rest", w.capacity(nil).GetMaximumVolumeSize().GetValue()/mib*mib, rawBlock())

			refused := func(err error) {
				t.Helper()
				requireCode(t, codes.ResourceExhausted, err)
				require.ErrorContains(t, err, csidriver.ParameterOvercommit)
			}
			_, err = w.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "more", VolumeContentSource: source,
				VolumeCapabilities: []*csi.VolumeCapability{rawBlock()}})
			refused(err)
			_, err = w.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: first.id, CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mib}})
			refused(err)

			require.NoError(t, first.publish(first.target, false))
			restored.mount()
			rest.mount()
			for round := range 2 {
				for _, d := range []*disk{rest, restored, first} {
					d.overwrite(byte(2 + round))
				}
			}
			_, err = w.snapshot("late", first)
			refused(err)
			for _, d := range []*disk{rest, restored, first} {
				d.unmount()
				require.NoError(t, d.remove())
			}
		})
	}
}

func TestCopiesOfCopiesReserveWhatTheyShare(t *testing.T) {
	requireProgram(t, "mkfs.xfs")
	w := newFixture(t)
	w.mountRoot("xfs", 400*mib)
	w.start()
	d := w.create("d", 48*mib, rawBlock())
	d.mount()
	d.overwrite(1)
	d.unmount()
	_, err := w.snapshot("one", d)
	require.NoError(t, err)
	left := w.capacity(nil).GetAvailableCapacity()
	two, err := w.snapshot("two", d)
	require.NoError(t, err)
	require.InDelta(t, left, w.capacity(nil).GetAvailableCapacity(), 1*mib, "nothing was written since: it needs nothing")
	copied := w.create("copied", 48*mib, rawBlock(), two)
	require.InDelta(t, left-48*mib, w.capacity(nil).GetAvailableCapacity(), 2*mib)
	// What only snapshots shared belongs to the volume again.
	require.NoError(t, copied.remove())
	for _, name := range []string{"one", "two"} {
		snapshots, err := w.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{})
		require.NoError(t, err)
		_, err = w.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: snapshots.Entries[0].Snapshot.SnapshotId})
		require.NoError(t, err, name)
	}
	require.Eventually(t, func() bool { return w.capacity(nil).GetAvailableCapacity() > left+40*mib }, time.Minute, 10*time.Millisecond)
	require.NoError(t, d.remove())
}

// createAs makes a raw block volume of a class with these parameters.
func (w *fixture) createAs(name string, size int64, parameters map[string]string) (*csi.Volume, error) {
	resp, err := w.CreateVolume(w.t.Context(), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, Parameters: parameters,
		VolumeCapabilities: []*csi.VolumeCapability{rawBlock()}})
	return resp.GetVolume(), err
}

func TestOvercommit(t *testing.T) {
	w := newFixture(t)
	w.mountRoot("tmpfs", 256*mib)
	w.config.KeepFree = 56 * mib
	w.start()
	twice, unlimited := map[string]string{"overcommit": "2"}, map[string]string{"overcommit": "unlimited"}
	whole := w.capacity(nil).GetMaximumVolumeSize().GetValue()
	require.InDelta(t, 200*mib, whole, 3*mib, "what is kept free is for no volume")
	require.InDelta(t, 2*whole, w.capacity(twice).GetMaximumVolumeSize().GetValue(), mib)
	require.Greater(t, w.capacity(unlimited).GetMaximumVolumeSize().GetValue(), int64(1<<40))

	_, err := w.createAs("double", 300*mib, twice)
	require.NoError(t, err)
	require.InDelta(t, whole-150*mib, w.capacity(nil).GetMaximumVolumeSize().GetValue(), 2*mib)
	_, err = w.createAs("strict", 64*mib, nil)
	requireCode(t, codes.ResourceExhausted, err)
	_, err = w.createAs("again", 64*mib, twice)
	require.NoError(t, err)
	_, err = w.createAs("huge", 1<<40, unlimited)
	require.NoError(t, err)
	w.start() // what a class promises outlives the driver
	require.InDelta(t, whole-182*mib, w.capacity(nil).GetMaximumVolumeSize().GetValue(), 2*mib)

	w.config.Thin = true
	w.start()
	_, err = w.createAs("thin", 1<<40, nil)
	require.NoError(t, err)
	_, err = w.createAs("exact", 64*mib, map[string]string{"overcommit": "1"})
	requireCode(t, codes.ResourceExhausted, err)
}

func TestPreallocatedVolumesKeepTheirBlocks(t *testing.T) {
	for fsType, size := range map[string]int64{"xfs": 1000 * mib, "ext4": 1000 * mib} {
		t.Run(fsType, func(t *testing.T) {
			requireProgram(t, "mkfs."+fsType)
			w := newFixture(t)
			w.mountRoot(fsType, size)
			w.start()
			whole := map[string]string{"preallocate": "true"}
			resp, err := w.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: "whole", CapacityRange: &csi.CapacityRange{RequiredBytes: 64 * mib}, Parameters: whole,
				VolumeCapabilities: []*csi.VolumeCapability{filesystem("ext4")}})
			require.NoError(t, err)
			allocated := func(id string) int64 {
				var stat unix.Stat_t
				require.NoError(t, unix.Stat(filepath.Join(w.config.Root, "volumes", id, "disk.img"), &stat))
				return stat.Blocks * 512
			}
			d := &disk{w: w, id: resp.GetVolume().GetVolumeId(), capability: filesystem("ext4"),
				staging: filepath.Join(w.dir, "staging"), target: filepath.Join(w.dir, "target")}
			require.GreaterOrEqual(t, allocated(d.id), int64(64*mib))
			d.mount()
			require.GreaterOrEqual(t, allocated(d.id), int64(64*mib), "mkfs has freed some")
			d.write("file", strings.Repeat("x", 16*mib))
			require.NoError(t, os.Remove(filepath.Join(d.target, "file")))
			_, _ = exec.Command("fstrim", d.target).CombinedOutput() // fails: the device discards nothing
			require.GreaterOrEqual(t, allocated(d.id), int64(64*mib), "it was trimmed")

			_, err = w.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
				VolumeId: d.id, CapacityRange: &csi.CapacityRange{RequiredBytes: 96 * mib}})
			require.NoError(t, err)
			require.GreaterOrEqual(t, allocated(d.id), int64(96*mib))

			d.write("kept", "content")
			source, err := w.snapshot("s", d)
			require.NoError(t, err)
			resp, err = w.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: "copy", Parameters: whole, VolumeContentSource: source,
				VolumeCapabilities: []*csi.VolumeCapability{filesystem("ext4")}})
			require.NoError(t, err)
			restored := &disk{w: w, id: resp.GetVolume().GetVolumeId(), capability: filesystem("ext4"),
				staging: filepath.Join(w.dir, "staging-2"), target: filepath.Join(w.dir, "target-2")}
			require.GreaterOrEqual(t, allocated(restored.id), int64(96*mib))
			restored.mount()
			require.Equal(t, "content", restored.read("kept"))
			restored.unmount()
			d.unmount()
			left := w.capacity(nil).GetAvailableCapacity()
			require.NoError(t, restored.remove())
			require.Eventually(t, func() bool { return w.capacity(nil).GetAvailableCapacity() > left+94*mib }, time.Minute, 10*time.Millisecond,
				"its blocks were its own; xfs frees them in the background")
		})
	}
}
