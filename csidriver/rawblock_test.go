package csidriver_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// TestContainersCannotHideThatTheyUseADevice detaches the loop device of a raw block volume as a container that has it can, with
// no privilege but the right to write to it.
func TestContainersCannotHideThatTheyUseADevice(t *testing.T) {
	w := newFixture(t)
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
