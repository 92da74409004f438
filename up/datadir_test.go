package up

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDataDirOfOthersIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it gives directories to another user")
	}
	base := t.TempDir()
	require.NoError(t, os.Chmod(base, 0o755))
	dir := filepath.Join(base, "data")
	require.NoError(t, checkDataDir(dir, 0), "a new one")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, checkDataDir(dir, 0))
	require.NoError(t, os.Chmod(dir, 0o777))
	require.ErrorContains(t, checkDataDir(dir, 0), "chmod go-w "+dir)
	require.NoError(t, os.Chmod(dir, os.ModeSticky|0o777))
	require.ErrorContains(t, checkDataDir(dir, 0), "other users can write", "others could make the files that berth reads")
	require.NoError(t, os.Chmod(dir, 0o700))
	require.NoError(t, os.Chown(dir, 65534, 65534))
	require.ErrorContains(t, checkDataDir(dir, 0), "user 65534 owns")
	require.NoError(t, checkDataDir(dir, 65534))
	require.NoError(t, os.Chown(dir, 0, 0))
	require.NoError(t, os.Chown(base, 65534, 65534))
	require.ErrorContains(t, checkDataDir(dir, 0), base)
}
