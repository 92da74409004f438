package mounts

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestTmpfsMaySwap(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("asking the kernel needs root: run the tests as root")
	}
	const head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	file := filepath.Join(t.TempDir(), "swaps")
	write := func(content string) {
		t.Helper()
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	}
	may, err := TmpfsMaySwap(file)
	require.NoError(t, err)
	require.False(t, may, "no such file: no swap")
	write(head)
	may, err = TmpfsMaySwap(file)
	require.NoError(t, err)
	require.False(t, may)

	write(head + "/swapfile                               file\t\t1048572\t\t0\t\t-2\n")
	may, err = TmpfsMaySwap(file)
	require.NoError(t, err)
	// A mount with the option must succeed exactly if the check says so.
	dir := t.TempDir()
	mountErr := unix.Mount("tmpfs", dir, "tmpfs", 0, "noswap")
	if mountErr == nil {
		require.NoError(t, unix.Unmount(dir, 0))
	}
	require.Equal(t, mountErr != nil, may, "%v", mountErr)

	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Mkdir(file, 0o700))
	_, err = TmpfsMaySwap(file)
	require.ErrorContains(t, err, "check whether this machine has swap")
}
