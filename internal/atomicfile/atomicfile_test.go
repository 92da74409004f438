package atomicfile_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/internal/atomicfile"
)

func TestWriteReplacesTheFileAndItsMode(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	require.NoError(t, atomicfile.Write(path, []byte("a longer first content"), 0o600))
	require.NoError(t, atomicfile.WriteVolatile(path, []byte("second"), 0o644))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "second", string(data))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), info.Mode().Perm())
	requireEntries(t, dir, "file")
}

func TestFailedWriteLeavesNothingAndNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x"+strings.Repeat("y", 300))
	require.ErrorContains(t, atomicfile.Write(path, nil, 0o600), "write "+path)
	absent := filepath.Join(dir, "no", "such")
	require.ErrorContains(t, atomicfile.Write(absent, nil, 0o600), "write "+absent)
	requireEntries(t, dir)
}

func TestWriteSetsADirectoryAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	var logged bytes.Buffer
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(&logged, nil)))
	t.Cleanup(klog.ClearLogger)
	for range 2 {
		require.NoError(t, os.RemoveAll(path))
		require.NoError(t, os.MkdirAll(filepath.Join(path, "child"), 0o700))
		require.NoError(t, atomicfile.Write(path, []byte("new"), 0o600))
	}
	requireEntries(t, dir, "file", "file.damaged", "file.damaged-2")
	require.DirExists(t, filepath.Join(path+".damaged", "child"))
	require.Contains(t, logged.String(), "aside="+path+".damaged ")
	require.Contains(t, logged.String(), "aside="+path+".damaged-2 ")
	name, ok := atomicfile.AsideOf("file.damaged-2")
	require.True(t, ok)
	require.Equal(t, "file", name)
	_, ok = atomicfile.AsideOf("file")
	require.False(t, ok)
}

func TestCleanRemovesPartlyWrittenFilesOnly(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".ca.key.berth-tmp-123"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ca.key"), nil, 0o600))
	require.NoError(t, atomicfile.Clean(dir))
	requireEntries(t, dir, "ca.key")
	require.Error(t, atomicfile.Clean(filepath.Join(dir, "absent")))
}

func requireEntries(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	require.Equal(t, names, got)
}
