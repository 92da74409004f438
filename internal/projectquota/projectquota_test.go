package projectquota_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/projectquota"
	"github.com/berth-dev/berth/volume/testsuite"
)

func TestTheKernelCountsATree(t *testing.T) {
	disk := testsuite.ProjectQuotaDisk(t)
	ids := &projectquota.IDs{}
	for _, name := range []string{"a", "b"} {
		dir := filepath.Join(disk, name)
		require.NoError(t, os.Mkdir(dir, 0o755))
		assigned, err := ids.Assign(dir)
		require.NoError(t, err)
		require.True(t, assigned)
		used, counted, err := projectquota.Usage(dir)
		require.NoError(t, err)
		require.True(t, counted)
		require.EqualValues(t, 1, used.Inodes, "the ID is its own")
	}
	dir := filepath.Join(disk, "a")
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sub", "file"), make([]byte, 1<<20), 0o600))
	unix.Sync() // ext4 counts blocks when it allots them
	used, counted, err := projectquota.Usage(dir)
	require.NoError(t, err)
	require.True(t, counted)
	require.EqualValues(t, 3, used.Inodes)
	require.InDelta(t, 1<<20, used.Bytes, 64<<10)

	again, err := (&projectquota.IDs{}).Assign(dir)
	require.NoError(t, err)
	require.True(t, again, "it keeps its ID after a restart")
	same, _, err := projectquota.Usage(dir)
	require.NoError(t, err)
	require.Equal(t, used, same)
	other, _, err := projectquota.Usage(filepath.Join(disk, "b"))
	require.NoError(t, err)
	require.EqualValues(t, 1, other.Inodes)
	require.NoError(t, os.RemoveAll(dir))
	_, _, err = projectquota.Usage(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestFileSystemWithoutProjectQuotas(t *testing.T) {
	for name, dir := range map[string]string{"temporary directory": t.TempDir(), "proc": "/proc"} {
		assigned, err := (&projectquota.IDs{}).Assign(dir)
		if err == nil && assigned {
			t.Skip("this machine's temporary directory has project quotas")
		}
		require.NoError(t, err, name)
		_, counted, err := projectquota.Usage(dir)
		require.NoError(t, err, name)
		require.False(t, counted, name)
	}
}
