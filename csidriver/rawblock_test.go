package csidriver_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// TestContainersCannotHideThatTheyUseADevice detaches the loop device of a raw block volume as a container that has it can, with
// no privilege but the right to write to it.
func TestContainersCannotHideThatTheyUseADevice(t *testing.T) {
	w := newFixture(t)
	needsNoMapper(t)
	w.start()
	d := w.create("d", 16*mib, rawBlock())
	d.mount()
	device, err := os.OpenFile(d.target, os.O_RDWR, 0)
	require.NoError(t, err)
	held, err := os.Open(d.target) // as the kubelet has it
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0))
	requireCode(t, codes.FailedPrecondition, d.detach())
	requireCode(t, codes.FailedPrecondition, d.remove())
	_, err = device.WriteAt([]byte("still works"), 0)
	require.NoError(t, errors.Join(err, device.Close(), held.Close()))
	require.NoError(t, d.unpublish())
	require.NoError(t, d.unstage())
	require.NoError(t, d.detach())
	require.NoError(t, d.remove())
}

// loopChangeFD is LOOP_CHANGE_FD of linux/loop.h.
const loopChangeFD = 0x4C06

// TestContainersCannotHarmTheNextUserOfADevice has a container change all that it can of the loop device of its raw block volume, with
// no privilege but the right to write to it. The next user has the device as it was, and no ioctl reaches another file.
func TestContainersCannotHarmTheNextUserOfADevice(t *testing.T) {
	w := newFixture(t)
	needsNoMapper(t)
	w.start()
	d := w.create("d", 16*mib, rawBlock())
	d.mount()
	device, err := os.OpenFile(d.target, os.O_RDWR, 0)
	require.NoError(t, err)
	fd := int(device.Fd())
	_, err = device.WriteAt([]byte("begin"), 0)
	require.NoError(t, err)
	require.NoError(t, device.Sync())

	other, err := os.Create(filepath.Join(t.TempDir(), "other"))
	require.NoError(t, err)
	require.NoError(t, other.Truncate(16*mib))
	for _, request := range []uint{unix.LOOP_SET_FD, loopChangeFD} {
		require.Error(t, unix.IoctlSetInt(fd, request, int(other.Fd())), "another file")
	}
	require.Error(t, unix.IoctlLoopConfigure(fd, &unix.LoopConfig{Fd: uint32(other.Fd())}), "another file")
	require.NoError(t, other.Close())

	info, err := unix.IoctlLoopGetStatus64(fd)
	require.NoError(t, err)
	info.Offset, info.Sizelimit = 4096, 8*mib
	require.NoError(t, unix.IoctlLoopSetStatus64(fd, info), "the kernel asks for no privilege")
	require.NoError(t, unix.IoctlSetInt(fd, unix.LOOP_SET_BLOCK_SIZE, 4096))
	_ = unix.IoctlSetInt(fd, unix.LOOP_SET_DIRECT_IO, 1) // not every file system has it
	require.NoError(t, device.Close())

	require.NoError(t, d.unpublish())
	require.NoError(t, d.publish(d.target, false))
	device, err = os.Open(d.target)
	require.NoError(t, err)
	size, err := unix.IoctlGetInt(int(device.Fd()), unix.BLKSSZGET)
	require.NoError(t, err)
	require.Equal(t, 512, size)
	end, err := device.Seek(0, io.SeekEnd)
	require.NoError(t, err)
	require.EqualValues(t, 16*mib, end)
	data := make([]byte, 5)
	_, err = device.ReadAt(data, 0)
	require.NoError(t, errors.Join(err, device.Close()))
	require.Equal(t, "begin", string(data))
	require.NoError(t, d.unpublish())
	require.NoError(t, d.unstage())
	require.NoError(t, d.detach())
	require.NoError(t, d.remove())
}
