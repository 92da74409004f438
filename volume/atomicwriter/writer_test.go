package atomicwriter_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/volume/atomicwriter"
)

func write(t *testing.T, dir string, content map[string]string) bool {
	t.Helper()
	files := make(map[string]atomicwriter.File)
	for path, data := range content {
		files[path] = atomicwriter.File{Data: []byte(data), Mode: 0o640}
	}
	changed, err := atomicwriter.Write(dir, files, atomicwriter.Options{Now: time.Now()})
	require.NoError(t, err)
	return changed
}

// visible is what a container that skips dot-dot names sees.
func visible(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := make(map[string]string)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "..") {
			continue
		}
		root, err := filepath.EvalSymlinks(filepath.Join(dir, entry.Name()))
		require.NoError(t, err)
		require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			relative, _ := filepath.Rel(root, path)
			got[filepath.Join(entry.Name(), relative)] = string(data)
			return err
		}))
	}
	return got
}

func TestWriteMakesTheFilesTheContentOfTheDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, content := range []map[string]string{
		{"a": "1", "sub/b": "2", "sub/deeper/c": "3", ".hidden": "4"},
		{"a": "changed", "sub/b": "2"},
		{"sub": "now a file"},
		{},
	} {
		write(t, dir, content)
		if diff := cmp.Diff(content, visible(t, dir)); diff != "" {
			t.Fatalf("files differ (-want +got):\n%s", diff)
		}
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		generations := 0
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), "..") && entry.IsDir() {
				generations++
			}
		}
		require.Equal(t, 1, generations, "old generations must go")
	}
}

func TestUnchangedFilesAreNotWritten(t *testing.T) {
	dir := t.TempDir()
	require.True(t, write(t, dir, map[string]string{"a": "1"}))
	before, err := os.Readlink(filepath.Join(dir, "..data"))
	require.NoError(t, err)
	require.False(t, write(t, dir, map[string]string{"a": "1"}))
	after, err := os.Readlink(filepath.Join(dir, "..data"))
	require.NoError(t, err)
	require.Equal(t, before, after)
	require.True(t, write(t, dir, map[string]string{"a": "2"}))
}

func TestModeOfFilesDoesNotDependOnUmask(t *testing.T) {
	dir := t.TempDir()
	for _, mode := range []os.FileMode{0o777, 0o400, 0o600} {
		files := map[string]atomicwriter.File{"f": {Data: []byte("x"), Mode: mode}}
		changed, err := atomicwriter.Write(dir, files, atomicwriter.Options{Now: time.Now()})
		require.NoError(t, err)
		require.True(t, changed, "another mode is a change")
		info, err := os.Stat(filepath.Join(dir, "f"))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm())
	}
}

func TestBadPathsAreRefused(t *testing.T) {
	for _, path := range []string{"", "/etc/passwd", "..", "../up", "a/../../up", "..data", "..x/y", ".", "a\x00b",
		strings.Repeat("n", 256), strings.Repeat("n/", 2049)} {
		dir := t.TempDir()
		_, err := atomicwriter.Write(dir, map[string]atomicwriter.File{path: {}}, atomicwriter.Options{Now: time.Now()})
		require.Error(t, err, "path %.20q", path)
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, entries, "nothing may be written")
	}
	_, err := atomicwriter.Write(t.TempDir(), map[string]atomicwriter.File{"a": {}, "a/b": {}},
		atomicwriter.Options{Now: time.Now()})
	require.ErrorContains(t, err, "cannot be a directory")
}

func TestWriteAfterACrash(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "1", "b": "1"})
	// Killed while writing the next generation, after making the temporary link, and before linking a new file.
	require.NoError(t, os.Mkdir(filepath.Join(dir, "..2020_01_01_00_00_00.1"), 0o755))
	require.NoError(t, os.Symlink("..2020_01_01_00_00_00.1", filepath.Join(dir, "..data_tmp")))
	require.NoError(t, os.Remove(filepath.Join(dir, "b")))
	require.False(t, write(t, dir, map[string]string{"a": "1", "b": "1"}))
	require.Equal(t, map[string]string{"a": "1", "b": "1"}, visible(t, dir))
	_, err := os.Lstat(filepath.Join(dir, "..data_tmp"))
	require.ErrorIs(t, err, os.ErrNotExist)
	// Killed after the switch, so that ..data points to a generation that does not exist.
	target, err := os.Readlink(filepath.Join(dir, "..data"))
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, target)))
	require.True(t, write(t, dir, map[string]string{"a": "1"}))
	require.Equal(t, map[string]string{"a": "1"}, visible(t, dir))
}

func TestReadersSeeOneGeneration(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "0", "b": "0"})
	stop := make(chan struct{})
	var compared atomic.Int32
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			// Opened once, as a reader that wants both files has to. The generation may be gone right after the
			// link was read; then there is nothing to compare.
			generation, err := os.OpenRoot(filepath.Join(dir, "..data"))
			if err != nil {
				continue
			}
			a, errA := generation.ReadFile("a")
			b, errB := generation.ReadFile("b")
			_ = generation.Close()
			if errA != nil || errB != nil {
				continue
			}
			if string(a) != string(b) {
				t.Errorf("mixed generations: a=%s b=%s", a, b)
				return
			}
			compared.Add(1)
		}
	})
	for i := 0; i < 200 || compared.Load() == 0; i++ {
		value := string(rune('A' + i%26))
		write(t, dir, map[string]string{"a": value, "b": value})
	}
	close(stop)
	wg.Wait()
	require.Positive(t, compared.Load(), "the reader must have read")
}
