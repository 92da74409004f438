// Package checkpointtest tests what all managers with a state file do with a damaged one.
package checkpointtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/internal/statefile/corrupt"
)

// DamagedIsSetAside damages the file that open creates in a directory, in each way that a file may be damaged, and checks that open sets it
// aside and writes one of the policy anew.
func DamagedIsSetAside(t *testing.T, file, policy string, open func(t *testing.T, dir string)) {
	t.Helper()
	corrupt.Each(t, func(t *testing.T) string {
		dir := t.TempDir()
		open(t, dir)
		return filepath.Join(dir, file)
	}, func(t *testing.T, way, path string) {
		open(t, filepath.Dir(path))
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, string(content), `"policyName":"`+policy+`"`)
		aside, err := statefile.Asides(path)
		require.NoError(t, err)
		require.Equal(t, way != "missing" && way != "no permission", len(aside) == 1, "%v", aside)
	})
}
