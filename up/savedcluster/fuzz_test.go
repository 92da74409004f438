package savedcluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzInfo lists a store with an arbitrary description of a saved cluster, under an arbitrary name: it is in the list, or in the error, which says what
// to do; and no name leads out of the store.
func FuzzInfo(f *testing.F) {
	f.Add("before-upgrade", []byte(`{"format":1,"name":"other","created":"2026-01-01T00:00:00Z","dataDir":"/var/lib/berth","node":"n"}`))
	f.Add("old", []byte(`{"format":0}`))
	f.Add("new", []byte(`{"format":2,"berth":"v9"}`))
	f.Add("../x", []byte(`null`))
	f.Add("a.partial", []byte(`{"form`))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		root := t.TempDir()
		s := New(filepath.Join(root, "store"))
		path, err := s.path(name)
		if err != nil {
			return
		}
		require.Equal(t, filepath.Join(root, "store"), filepath.Dir(path))
		require.NoError(t, os.MkdirAll(path, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(path, infoName), content, 0o600))
		list, err := s.List()
		if err != nil {
			require.Empty(t, list)
			require.ErrorContains(t, err, name)
			require.NotContains(t, err.Error(), "%!", "it wraps no error")
			return
		}
		require.Len(t, list, 1)
		require.Equal(t, name, list[0].Name)
		require.NoError(t, s.Delete(name))
	})
}
