package diskusage_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/diskusage"
)

func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	empty, err := diskusage.Measure(t.Context(), dir, 0)
	require.NoError(t, err)
	require.EqualValues(t, 1, empty.Inodes)

	data := make([]byte, 1<<20)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sub", "a"), data, 0o600))
	require.NoError(t, os.Link(filepath.Join(dir, "sub", "a"), filepath.Join(dir, "b")))
	require.NoError(t, os.Symlink("/usr", filepath.Join(dir, "link")))
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	require.NoError(t, err)
	require.NoError(t, sparse.Truncate(1<<30))
	require.NoError(t, sparse.Close())

	used, err := diskusage.Measure(t.Context(), dir, 0)
	require.NoError(t, err)
	require.EqualValues(t, 5, used.Inodes, "the directories, a file with two names, a link that is not followed, a sparse file")
	require.GreaterOrEqual(t, used.Bytes-empty.Bytes, int64(1<<20))
	require.Less(t, used.Bytes-empty.Bytes, int64(2<<20))

	enough, err := diskusage.Measure(t.Context(), dir, 1)
	require.NoError(t, err)
	require.Less(t, enough.Inodes, used.Inodes)

	missing, err := diskusage.Measure(t.Context(), filepath.Join(dir, "missing"), 0)
	require.NoError(t, err)
	require.Zero(t, missing)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = diskusage.Measure(ended, dir, 0)
	require.ErrorIs(t, err, context.Canceled)
}
