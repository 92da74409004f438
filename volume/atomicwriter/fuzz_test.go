package atomicwriter_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/volume/atomicwriter"
)

// FuzzWrite writes files of any paths, which a Pod's spec may name: all are readable then, or the former ones still are, and nothing is written
// beside the directory.
func FuzzWrite(f *testing.F) {
	f.Add("a", "b/c", []byte("x"))
	f.Add("./..data", "b", []byte("x"))
	f.Add("a", "a/b", []byte("x"))
	f.Add("..2026", "./../x", []byte(""))
	f.Add("a//b/./c", "..data_tmp", []byte("y"))
	f.Fuzz(func(t *testing.T, first, second string, data []byte) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "volume")
		require.NoError(t, os.Mkdir(dir, 0o755))
		before := map[string]atomicwriter.File{"former": {Data: []byte("kept"), Mode: 0o644}}
		options := atomicwriter.Options{Now: time.Unix(0, 0)}
		_, err := atomicwriter.Write(dir, before, options)
		require.NoError(t, err)
		files := map[string]atomicwriter.File{first: {Data: data, Mode: 0o644}, second: {Data: data, Mode: 0o600}}
		_, err = atomicwriter.Write(dir, files, options)
		if err != nil {
			files = before
		}
		for path, file := range files {
			have, err := os.ReadFile(filepath.Join(dir, path))
			require.NoError(t, err, "%q of %q and %q", path, first, second)
			require.Equal(t, string(file.Data), string(have))
		}
		beside, err := os.ReadDir(parent)
		require.NoError(t, err)
		require.Len(t, beside, 1, "%q and %q", first, second)
		changed, err := atomicwriter.Write(dir, files, options)
		require.NoError(t, err)
		require.False(t, changed, "%q and %q are written again", first, second)
	})
}
