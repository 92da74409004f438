package savedcluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mountedDir returns a directory that is a file system of its own, new as the tools of ext4 make it.
func mountedDir(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root: run the tests as root")
	}
	dir := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=700"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, 0)) })
	require.NoError(t, os.Mkdir(filepath.Join(dir, "lost+found"), 0o700))
	return dir
}

func names(t *testing.T, dir string) (found []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		found = append(found, entry.Name())
	}
	return found
}

// TestADataDirThatIsMounted restores and copies a cluster to a data directory that is a file system of its own.
func TestADataDirThatIsMounted(t *testing.T) {
	f := newFixture(t)
	f.data = mountedDir(t)
	f.write(t, "cluster.json", "{}")
	f.write(t, "etcd/member/db", "objects")
	f.write(t, "lock", "held")
	f.write(t, "lost+found/1", "piece")
	f.save(t, "one")
	require.NoDirExists(t, filepath.Join(f.store.dir, "one", dataName, "lost+found"))

	f.write(t, "etcd/member/db", "changed")
	f.write(t, "new", "")
	require.NoError(t, f.store.Replace(t.Context(), "one", f.data, nothing))
	require.Equal(t, "objects", f.read(t, filepath.Join(f.data, "etcd/member/db")))
	require.Equal(t, []string{"cluster.json", "etcd", "lock", "lost+found"}, names(t, f.data), "the lock is its holder's")
	require.Equal(t, "piece", f.read(t, filepath.Join(f.data, "lost+found/1")))
	require.Equal(t, []string{"data"}, names(t, filepath.Dir(f.data)), "nothing is left beside it")

	require.ErrorContains(t, f.store.Copy(t.Context(), "one", f.data, nothing), "not empty")
	fork := mountedDir(t)
	require.NoError(t, f.store.Copy(t.Context(), "one", fork, nothing))
	require.Equal(t, []string{"cluster.json", "etcd", "lost+found"}, names(t, fork))
}
