package csidriver_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/volume/testsuite"
)

// needsMapper skips the test where the kernel has no device mapper. The virtual machine of vm/ has it.
func needsMapper(t *testing.T) {
	t.Helper()
	if err := loopdev.New().CheckMapper(); err != nil {
		t.Skip(err)
	}
}

// needsNoMapper skips the test where containers get a mapping, which has no ioctls of a loop device.
func needsNoMapper(t *testing.T) {
	t.Helper()
	if loopdev.New().CheckMapper() == nil {
		t.Skip("the kernel has a device mapper, so containers get no loop device: TestContainersGetNoIoctlOfTheLoopDevice")
	}
}

// backingOf returns the path of the loop device's node below the mapping that is published on the target.
func backingOf(t *testing.T, target string) string {
	t.Helper()
	var stat unix.Stat_t
	require.NoError(t, unix.Stat(target, &stat))
	name, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(stat.Rdev), unix.Minor(stat.Rdev)))
	require.NoError(t, err)
	below, err := filepath.Glob(name + "/slaves/loop*")
	require.NoError(t, err)
	require.Len(t, below, 1, "%s is no mapping of one loop device", name)
	return "/dev/" + filepath.Base(below[0])
}

// containerNode makes a node of the same device, as a runtime does for a container: one that is open keeps nothing mounted.
func containerNode(t *testing.T, target string) string {
	t.Helper()
	var stat unix.Stat_t
	require.NoError(t, unix.Stat(target, &stat))
	path := filepath.Join(testsuite.DeviceDir(t), "node")
	require.NoError(t, unix.Mknod(path, unix.S_IFBLK|0o600, int(stat.Rdev)))
	return path
}

// TestContainersGetNoIoctlOfTheLoopDevice tries, with the right to write to the device of a raw block volume, all that changes a loop
// device. The device mapper knows none of it, and nothing changes. The data is that of the image, and a volume that grows is larger at
// once.
func TestContainersGetNoIoctlOfTheLoopDevice(t *testing.T) {
	w := newFixture(t)
	needsMapper(t)
	w.start()
	d := w.create("d", 16*mib, rawBlock())
	d.mount()
	loop := backingOf(t, d.target)
	before, err := os.ReadFile("/sys/block/" + filepath.Base(loop) + "/diskseq")
	require.NoError(t, err)
	device, err := os.OpenFile(containerNode(t, d.target), os.O_RDWR, 0)
	require.NoError(t, err)
	fd := int(device.Fd())
	other, err := os.Create(filepath.Join(t.TempDir(), "other"))
	require.NoError(t, err)
	require.NoError(t, other.Truncate(16*mib))
	for name, call := range map[string]func() error{
		"get status":    func() error { _, err := unix.IoctlLoopGetStatus64(fd); return err },
		"set status":    func() error { return unix.IoctlLoopSetStatus64(fd, &unix.LoopInfo64{Offset: 4096}) },
		"configure":     func() error { return unix.IoctlLoopConfigure(fd, &unix.LoopConfig{Fd: uint32(other.Fd())}) },
		"set file":      func() error { return unix.IoctlSetInt(fd, unix.LOOP_SET_FD, int(other.Fd())) },
		"change file":   func() error { return unix.IoctlSetInt(fd, loopChangeFD, int(other.Fd())) },
		"clear":         func() error { return unix.IoctlSetInt(fd, unix.LOOP_CLR_FD, 0) },
		"set capacity":  func() error { return unix.IoctlSetInt(fd, unix.LOOP_SET_CAPACITY, 0) },
		"set block":     func() error { return unix.IoctlSetInt(fd, unix.LOOP_SET_BLOCK_SIZE, 4096) },
		"set direct IO": func() error { return unix.IoctlSetInt(fd, unix.LOOP_SET_DIRECT_IO, 1) },
	} {
		require.ErrorIs(t, call(), unix.ENOTTY, name)
	}
	require.NoError(t, other.Close())
	after, err := os.ReadFile("/sys/block/" + filepath.Base(loop) + "/diskseq")
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))

	// Across the border of the two parts of the mapping, and at the end.
	text := []byte(strings.Repeat("0123456789abcdef", 512))
	for _, at := range []int64{0, 16*mib - int64(len(text))} {
		_, err = device.WriteAt(text, at)
		require.NoError(t, err)
	}
	require.NoError(t, device.Sync())
	image, err := os.Open(d.image())
	require.NoError(t, err)
	read := make([]byte, len(text))
	for _, at := range []int64{0, 16*mib - int64(len(text))} {
		_, err = image.ReadAt(read, at)
		require.NoError(t, err)
		require.Equal(t, string(text), string(read))
	}
	require.NoError(t, image.Close())

	_, err = w.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
		VolumeId: d.id, CapacityRange: &csi.CapacityRange{RequiredBytes: 32 * mib}, VolumeCapability: rawBlock()})
	require.NoError(t, err)
	end, err := device.Seek(0, io.SeekEnd)
	require.NoError(t, err)
	require.EqualValues(t, 32*mib, end)

	// Unpublished while it is open, as by a process that the kernel has not ended yet, and published again.
	require.NoError(t, d.unpublish())
	require.NoError(t, d.publish(d.target, false))
	again, err := os.Open(d.target)
	require.NoError(t, err)
	_, err = again.ReadAt(read, 0)
	require.NoError(t, errors.Join(err, again.Close(), device.Close()))
	require.Equal(t, string(text), string(read))
	require.NoError(t, d.unpublish())
	require.DirExists(t, "/sys/block/"+filepath.Base(loop)+"/holders")
	holders, err := filepath.Glob("/sys/block/" + filepath.Base(loop) + "/holders/*")
	require.NoError(t, err)
	require.Empty(t, holders)
	require.NoError(t, d.unstage())
	require.NoError(t, d.detach())
	require.NoError(t, d.remove())
}
