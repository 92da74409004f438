package machine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzCgroupFiles reads arbitrary files of a cgroup: a number is never negative, and an error names the file.
func FuzzCgroupFiles(f *testing.F) {
	f.Add("max\n")
	f.Add("18446744073709551615")
	f.Add("anon 1\ninactive_file 4096\ntotal_inactive_file 5\n")
	f.Add("inactive_file\n")
	f.Fuzz(func(t *testing.T, content string) {
		file := filepath.Join(t.TempDir(), "memory.stat")
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		for _, read := range []func() (int64, error){
			func() (int64, error) { return readNumber(file) },
			func() (int64, error) { return readKey(file, "inactive_file") },
		} {
			n, err := read()
			if err != nil {
				require.ErrorContains(t, err, file)
				continue
			}
			require.GreaterOrEqual(t, n, int64(0))
		}
	})
}
