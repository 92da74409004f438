package berthtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/up/isolate"
)

func TestDirectoriesOfKilledTestsAreRemoved(t *testing.T) {
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

func TestKindOfSource(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	for source, want := range map[string]sourceKind{
		"example.com/app": goPackage,
		dir:               goPackage,
		filepath.Dir(file("layout/oci-layout", "{}")):   archive,
		file("image.tar", "manifest.json"):              archive,
		file("empty", ""):                               archive,
		file("program", "\x7fELF and more of the same"): program,
	} {
		kind, err := kindOf(source)
		require.NoError(t, err, source)
		require.Equal(t, want, kind, source)
	}
}

func TestMissingProgramsSayWhatToDo(t *testing.T) {
	t.Setenv(binEnv, t.TempDir())
	_, err := findPrograms(t.Context(), "", false)
	require.ErrorContains(t, err, "no program berth there")
	t.Setenv("PATH", t.TempDir())
	t.Setenv(binEnv, "")
	_, err = findPrograms(t.Context(), "", false) // without the go command, too
	require.ErrorContains(t, err, "install berth")
	require.ErrorIs(t, err, ErrUnavailable)
}

func TestReadyIsSeenOnceItIsPrinted(t *testing.T) {
	var seen []string
	l := &lines{onLine: func(line string) { seen = append(seen, line) }, ready: make(chan struct{})}
	for _, part := range []string{"etcd  ready\nKubernetes v1 is rea", "dy af"} {
		_, err := l.Write([]byte(part))
		require.NoError(t, err)
		require.Len(t, seen, 1)
	}
	_, err := l.Write([]byte("ter 1.5 s.\nKubernetes is ready after\n"))
	require.NoError(t, err)
	<-l.ready
	require.Equal(t, []string{"etcd  ready", "Kubernetes v1 is ready after 1.5 s.", "Kubernetes is ready after"}, seen)
}
