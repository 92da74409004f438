package disposable

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/up/isolate"
)

func TestDirectoriesOfKilledProcessesAreRemoved(t *testing.T) {
	root := filepath.Join(t.TempDir(), "clusters")
	used, err := makeDirectory(t.Context(), root)
	require.NoError(t, err)
	killed, err := makeDirectory(t.Context(), root)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(killed.data(), 0o700))
	ending, err := filelock.Acquire(filepath.Join(killed.data(), isolate.LockName))
	require.NoError(t, err)
	require.NoError(t, killed.close()) // as the kernel does

	other, err := makeDirectory(t.Context(), root)
	require.NoError(t, err)
	require.DirExists(t, used.path)
	require.DirExists(t, killed.path, "its processes are still ending")
	require.NoError(t, ending.Close())
	// Processes were killed while they made and removed these; a saved cluster is none of them.
	halfMade, halfRemoved, saved := filepath.Join(root, "c1"), filepath.Join(root, "c2"), filepath.Join(root, "saved")
	for _, dir := range []string{halfMade, filepath.Join(halfRemoved, dataDir, "etcd"), saved} {
		require.NoError(t, os.MkdirAll(dir, 0o700))
	}
	last, err := makeDirectory(t.Context(), root)
	require.NoError(t, err)
	require.NoError(t, last.remove())
	require.NoDirExists(t, halfMade)
	require.NoDirExists(t, halfRemoved)
	require.DirExists(t, used.path)
	require.NoDirExists(t, killed.path)
	require.NoError(t, other.remove())
	require.NoError(t, used.remove())
	left, err := os.ReadDir(root)
	require.NoError(t, err)
	var names []string
	for _, entry := range left {
		names = append(names, entry.Name())
	}
	require.Equal(t, []string{"saved"}, names)
}

// TestFilesOfAClusterThatFailedStayForItsUser runs a program that fails in the place of berth.
func TestFilesOfAClusterThatFailedStayForItsUser(t *testing.T) {
	files, err := makeDirectory(t.Context(), t.TempDir())
	require.NoError(t, err)
	process, err := startProcess("/bin/false", nil, func(string) {})
	require.NoError(t, err)
	<-process.ended
	failed := &owned{process: process, files: files}
	require.ErrorContains(t, failed.end(time.Minute, true), "berth up ended with exit status 1")
	require.DirExists(t, files.path, "they say why")
	require.ErrorContains(t, failed.discard(0), "berth up ended with exit status 1")
	require.NoDirExists(t, files.path, "no user reads them")
}

// TestAClusterIsKilledBeforeItHasADirectory runs a program in the place of berth that ignores signals.
func TestAClusterIsKilledBeforeItHasADirectory(t *testing.T) {
	files, err := makeDirectory(t.Context(), t.TempDir())
	require.NoError(t, err)
	printed := make(chan string, 1)
	process, err := startProcess("/bin/sh", []string{"-c", "trap '' INT; echo trapped; exec sleep 60"}, func(line string) { printed <- line })
	require.NoError(t, err)
	<-printed
	require.NoError(t, (&owned{process: process, files: files}).discard(0))
	require.NoDirExists(t, files.path)
}
