package mounts_test

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"

	"github.com/berth-dev/berth/volume/mounts"
)

// TestByPathMountsDescriptorsItself mounts from an open file with a Mounter that knows paths only.
func TestByPathMountsDescriptorsItself(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	inner := mount.NewFakeMounter(nil)
	mounter := mounts.ByPath(inner)
	source, target := t.TempDir(), t.TempDir()
	fd, err := unix.Open(source, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, mounter.Mount("/proc/self/fd/"+strconv.Itoa(fd), target, "", []string{"bind"}))
	defer func() { require.NoError(t, mounts.Syscalls{}.Unmount(target)) }()
	require.Empty(t, inner.GetLog())
	mounted, err := mounts.Syscalls{}.IsMountPoint(target)
	require.NoError(t, err)
	require.True(t, mounted)

	require.NoError(t, mounter.Mount("server:/share", source, "nfs", nil))
	require.Len(t, inner.GetLog(), 1)
}

// failingUnmount cannot unmount anything.
type failingUnmount struct{ mounts.Syscalls }

func (failingUnmount) Unmount(string) error { return errors.New("exit status 32") }

func TestByPathReportsWhatIsNotMounted(t *testing.T) {
	mounter, dir := mounts.ByPath(failingUnmount{}), t.TempDir()
	require.ErrorIs(t, mounter.Unmount(dir), unix.EINVAL)
	require.NoError(t, mounts.UnmountListed(mounter, dir))
	require.EqualError(t, mounter.Unmount("/"), "exit status 32")
}
