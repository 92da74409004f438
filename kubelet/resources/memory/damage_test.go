package memory_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/internal/statefile/corrupt"
	"github.com/berth-dev/berth/kubelet/resources/memory"
)

// TestDamagedStateOfNoDecisionsIsSetAside: without the policy static the file has nothing that the kubelet could not start without.
func TestDamagedStateOfNoDecisionsIsSetAside(t *testing.T) {
	corrupt.Each(t, func(t *testing.T) string {
		dir := t.TempDir()
		_, err := open(t, dir, false)
		require.NoError(t, err)
		return filepath.Join(dir, memory.StateFile)
	}, func(t *testing.T, way, path string) {
		_, err := open(t, filepath.Dir(path), false)
		require.NoError(t, err)
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Contains(t, string(content), `"policyName":"None"`)
		aside, err := statefile.Asides(path)
		require.NoError(t, err)
		require.Equal(t, way != "missing" && way != "no permission", len(aside) == 1, "%v", aside)
	})
}
