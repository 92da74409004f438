package allocation

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzReadCheckpoint reads arbitrary checkpoints, with a checksum that is right so that their content is reached.
func FuzzReadCheckpoint(f *testing.F) {
	f.Add([]byte(`{"entries":{"u-1":{"ContainerResources":{"app":{"limits":{"cpu":"500m"}}}}}}`), true)
	f.Add([]byte(`{"entries":{"u-1":{"ContainerResources":{"app":{"limits":{"cpu":"1e999999999"}}}}}}`), true)
	f.Add([]byte(`{"data":"{}","checksum":1}`), false)
	f.Fuzz(func(t *testing.T, content []byte, wrap bool) {
		if wrap {
			var err error
			content, err = json.Marshal(checkpoint{string(content), checksum(string(content))})
			require.NoError(t, err)
		}
		path := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(path, content, 0o600))
		pods, err := readCheckpoint(path)
		if err != nil {
			require.Empty(t, pods)
		}
	})
}
