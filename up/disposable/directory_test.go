package disposable

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/up/isolate"
)

func TestDirectoriesOfKilledProcessesAreRemoved(t *testing.T) {
	root := filepath.Join(t.TempDir(), "clusters")
	used, err := makeDirectory(root)
	require.NoError(t, err)
	killed, err := makeDirectory(root)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(killed.data(), 0o700))
	ending, err := filelock.Acquire(filepath.Join(killed.data(), isolate.LockName))
	require.NoError(t, err)
	require.NoError(t, killed.lock.Close()) // as the kernel does

	other, err := makeDirectory(root)
	require.NoError(t, err)
	require.DirExists(t, used.path)
	require.DirExists(t, killed.path, "its processes are still ending")
	require.NoError(t, ending.Close())
	require.NoError(t, removeAbandoned(root))
	require.DirExists(t, used.path)
	require.NoDirExists(t, killed.path)
	require.NoError(t, other.remove())
	require.NoError(t, used.remove())
	left, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Empty(t, left)
}
