package programs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDirectoryOfThePrograms(t *testing.T) {
	root := t.TempDir()
	bin, libexec := filepath.Join(root, "bin"), filepath.Join(root, "libexec", "berth")
	for _, dir := range []string{bin, libexec} {
		require.NoError(t, os.MkdirAll(dir, 0o755))
	}
	self := filepath.Join(bin, "berth")
	require.Equal(t, bin, dirOf(self), "where an error says what is missing")
	require.NoError(t, os.WriteFile(filepath.Join(libexec, marker), nil, 0o755))
	require.Equal(t, libexec, dirOf(self))
	require.NoError(t, os.WriteFile(filepath.Join(bin, marker), nil, 0o755))
	require.Equal(t, bin, dirOf(self), "a build's own")
	link := filepath.Join(root, "link")
	require.NoError(t, os.WriteFile(self, nil, 0o755))
	require.NoError(t, os.Symlink(self, link))
	dir, err := DirOf(link)
	require.NoError(t, err)
	real, err := filepath.EvalSymlinks(bin)
	require.NoError(t, err)
	require.Equal(t, real, dir, "of a program at a path")
	_, err = DirOf(filepath.Join(root, "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
