package csidriver

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRemovalAfterOneThatFailed removes a volume while a former one of its name is not removed completely.
func TestRemovalAfterOneThatFailed(t *testing.T) {
	s := &store{root: t.TempDir(), logger: slog.New(slog.DiscardHandler)}
	unlock, err := s.open()
	require.NoError(t, err)
	defer unlock()
	id := volumeID("v")
	for _, dir := range []string{s.dir(id), filepath.Join(s.tmp(), id+"-removed")} {
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, imageName), nil, 0o600))
	}
	require.NoError(t, s.remove(id))
	require.NoDirExists(t, s.dir(id))
	left, err := os.ReadDir(s.tmp())
	require.NoError(t, err)
	require.Empty(t, left)
}
