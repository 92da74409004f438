package removal

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestWhatAUserHasMountedStays unmounts what is in a directory that is a mount of itself, a disk of its user's, or a bind mount of another
// directory. Only the first is itself unmounted.
func TestWhatAUserHasMountedStays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root: run the tests as root")
	}
	other := t.TempDir()
	for name, test := range map[string]struct {
		mount func(dir string) error
		stays bool
	}{
		"itself": {func(dir string) error { return unix.Mount(dir, dir, "", unix.MS_BIND, "") }, false},
		"a disk": {func(dir string) error { return unix.Mount("tmpfs", dir, "tmpfs", 0, "") }, true},
		"bound":  {func(dir string) error { return unix.Mount(other, dir, "", unix.MS_BIND, "") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, test.mount(dir))
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // which has nothing to do if it does not stay
			inside := filepath.Join(dir, "inside")
			require.NoError(t, os.Mkdir(inside, 0o700))
			require.NoError(t, unix.Mount("tmpfs", inside, "tmpfs", 0, ""))
			require.NoError(t, UnmountBelow(dir))
			left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
			require.NoError(t, err)
			if !test.stays {
				require.Empty(t, left)
				return
			}
			require.Len(t, left, 1)
			require.Equal(t, dir, left[0].Mountpoint)
			require.NoError(t, UnmountBelow(dir))
			require.DirExists(t, inside)
		})
	}
}
