package atomicfile_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/controlplane/atomicfile"
)

func TestWriteReplacesWholeAndPrivate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(path, []byte("a longer old content"), 0o644))
	require.NoError(t, atomicfile.Write(path, []byte("new")))

	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "new", string(data))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "no temporary file stays")
}

func TestFailedWriteLeavesNothingAndNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, strings.Repeat("y", 300))
	require.ErrorContains(t, atomicfile.Write(path, []byte("x")), path)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestWriteSetsADirectoryAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	require.NoError(t, os.MkdirAll(filepath.Join(path, "child"), 0o700))
	state := klog.CaptureState()
	defer state.Restore()
	var said bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(&said)
	require.NoError(t, atomicfile.Write(path, []byte("x")))
	require.DirExists(t, filepath.Join(path+".damaged", "child"))
	klog.Flush()
	require.Contains(t, said.String(), path+".damaged", "it is said where the directory is")
}

func TestCleanRemovesOnlyPartlyWrittenFiles(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.key.berth-tmp-123"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.key"), nil, 0o600))
	require.NoError(t, atomicfile.Clean(dir))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, "ca.key", entries[0].Name())
}

func TestDirRestrictsMode(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, atomicfile.Dir(dir))
	info, err := os.Stat(dir)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}
