package containerd

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/fnv"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/statefile/corrupt"
)

// makeDatabase copies an empty database of bbolt, and returns its path.
func makeDatabase(t *testing.T, root string) string {
	t.Helper()
	path := filepath.Join(root, "io.containerd.metadata.v1.bolt", "meta.db")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	pageSize, order := os.Getpagesize(), binary.NativeEndian
	data := make([]byte, 4*pageSize)
	for i := range uint64(2) {
		meta := data[int(i)*pageSize+boltMeta:]
		for at, value := range map[int]uint32{0: boltMagic, 4: boltVersion, 8: uint32(pageSize)} {
			order.PutUint32(meta[at:], value)
		}
		for at, value := range map[int]uint64{16: 3, 32: 2, 40: 4, 48: i} { // root, free list, number of pages, transaction
			order.PutUint64(meta[at:], value)
		}
		sum := fnv.New64a()
		_, _ = sum.Write(meta[:boltSum])
		order.PutUint64(meta[boltSum:], sum.Sum64())
	}
	require.NoError(t, os.WriteFile(path, data, 0o600))
	return path
}

// TestDamagedDatabaseIsSetAside damages a database of containerd in every way: what is damaged is kept, and what is not is used on.
func TestDamagedDatabaseIsSetAside(t *testing.T) {
	var config Config
	corrupt.Each(t, func(t *testing.T) string {
		config = Config{Root: filepath.Join(t.TempDir(), "containerd")}
		require.NoError(t, os.MkdirAll(filepath.Join(config.Root, registriesDir), 0o755))
		return makeDatabase(t, config.Root)
	}, func(t *testing.T, way, _ string) {
		var log bytes.Buffer
		require.NoError(t, config.SetAsideDamaged(t.Context(), slog.New(slog.NewTextHandler(&log, nil))))
		require.DirExists(t, filepath.Join(config.Root, registriesDir), "what people have put there stays")
		if way == "no permission" || way == "missing" || way == "huge" || way == "one bit" { // the first byte of the file means nothing
			require.NoDirExists(t, config.Root+".damaged", log.String())
			return
		}
		require.DirExists(t, config.Root+".damaged")
		require.Contains(t, log.String(), "meta.db")
		require.Contains(t, log.String(), "imported again")
		makeDatabase(t, config.Root)
	})
}

// TestNetworksConfigurationThatIsNoFile: it is kept and logged, and a file, which every start writes again, is not.
func TestNetworksConfigurationThatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	config := Config{Root: filepath.Join(dir, "containerd"), CNIConfDir: dir}
	path := filepath.Join(dir, networkFile)
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	require.NoError(t, os.Mkdir(path, 0o700))
	require.NoError(t, config.SetAsideDamaged(t.Context(), logger))
	require.DirExists(t, path+".damaged")
	require.Contains(t, log.String(), "the configuration of the pod network is written again")

	log.Reset()
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	require.NoError(t, config.SetAsideDamaged(t.Context(), logger))
	require.FileExists(t, path)
	require.Empty(t, log.String())
}

func TestContainerdsDirectoryThatIsWholeStays(t *testing.T) {
	config := Config{Root: filepath.Join(t.TempDir(), "containerd")}
	require.NoError(t, config.SetAsideDamaged(t.Context(), slog.New(slog.DiscardHandler)), "a first start")
	makeDatabase(t, config.Root)
	require.NoError(t, config.SetAsideDamaged(t.Context(), slog.New(slog.DiscardHandler)))
	require.NoDirExists(t, config.Root+".damaged")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, config.SetAsideDamaged(ctx, slog.New(slog.DiscardHandler)), context.Canceled)
}
