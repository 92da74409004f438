package atomicfile_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/atomicfile"
)

func TestWritesReplaceAndLeaveNoTrace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	require.NoError(t, atomicfile.Write(path, []byte("one")))
	require.NoError(t, atomicfile.WriteVolatile(path, []byte("two")))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "two", string(data))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, os.Mkdir(filepath.Join(dir, "taken"), 0o700))
	require.ErrorContains(t, atomicfile.Write(filepath.Join(dir, "taken"), nil), "write ")
	require.ErrorContains(t, atomicfile.Write(filepath.Join(dir, "no", "such"), nil), "write ")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 2, "the file and the directory, and nothing beside them")
}
