package vm

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTarKeepsFilesAndStaysBelowItsDirectory(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(from, "a", "b"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(from, "a", "b", "run"), []byte("text"), 0o755))
	require.NoError(t, os.Symlink("b/run", filepath.Join(from, "a", "link")))
	var archive bytes.Buffer
	require.NoError(t, writeTar(&archive, filepath.Join(from, "a")))
	require.NoError(t, readTar(&archive, to))
	info, err := os.Stat(filepath.Join(to, "a", "b", "run"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode().Perm())
	require.NoFileExists(t, filepath.Join(to, "a", "link"), "links are not followed and not made")

	archive.Reset()
	require.NoError(t, writeTar(&archive, filepath.Join(from, "a", "b", "run")))
	hostile := bytes.ReplaceAll(archive.Bytes(), []byte("run\x00\x00"), []byte("../xx")[:5])
	require.Error(t, readTar(bytes.NewReader(hostile), to))
	require.NoFileExists(t, filepath.Join(filepath.Dir(to), "xx"))
}

func TestQuote(t *testing.T) {
	require.Equal(t, `'it'\''s $HOME'`, quote("it's $HOME"))
}
