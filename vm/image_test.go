package vm

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBuildFindsImageInCacheOfRelativePath(t *testing.T) {
	t.Chdir(t.TempDir())
	dir := filepath.Join("cache", imageName(DefaultRelease))
	require.NoError(t, os.MkdirAll(dir, 0o755))
	_, err := writeKey(filepath.Join(dir, keyFile))
	require.NoError(t, err)
	i, err := Build(t.Context(), "cache", DefaultRelease, slog.New(slog.DiscardHandler), io.Discard)
	require.NoError(t, err)
	require.True(t, filepath.IsAbs(i.dir), "disks of machines, which are elsewhere, name %s", i.dir)
}
