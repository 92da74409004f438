package statefile_test

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/statefile"
)

func TestReadRefusesWhatIsNoSmallFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("12345678"), 0o600))
	data, err := statefile.Read(file, 8)
	require.NoError(t, err)
	require.Equal(t, "12345678", string(data))
	_, err = statefile.Read(file, 7)
	require.ErrorIs(t, err, statefile.ErrDamaged)
	_, err = statefile.Read(dir, 8)
	require.ErrorIs(t, err, statefile.ErrDamaged)
	_, err = statefile.Read(filepath.Join(dir, "absent"), 8)
	require.ErrorIs(t, err, fs.ErrNotExist)
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(file, link))
	_, err = statefile.Read(link, 8)
	require.ErrorIs(t, err, statefile.ErrDamaged)
	fifo := filepath.Join(dir, "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	_, err = statefile.Read(fifo, 8)
	require.ErrorIs(t, err, statefile.ErrDamaged)
}

func TestSetAsideKeepsEveryFileAndSaysSo(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "meta.json")
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	for _, content := range []string{"first", "second"} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		require.NotEmpty(t, statefile.SetAside(logger, path, errors.New("unexpected end"), "the volume has no name"))
	}
	require.NoError(t, os.Mkdir(path, 0o700))
	require.Equal(t, path+".damaged-3", statefile.SetAside(logger, path, errors.New("a directory"), ""))
	data, err := os.ReadFile(path + ".damaged")
	require.NoError(t, err)
	require.Equal(t, "first", string(data))
	data, err = os.ReadFile(path + ".damaged-2")
	require.NoError(t, err)
	require.Equal(t, "second", string(data))
	require.Contains(t, log.String(), "unexpected end")
	require.Contains(t, log.String(), "the volume has no name")
	require.Contains(t, log.String(), path+".damaged")
	require.Empty(t, statefile.SetAside(logger, path, errors.New("gone"), ""), "nothing is at the path")

	found, err := statefile.Asides(path)
	require.NoError(t, err)
	require.Len(t, found, 3)
	require.Len(t, statefile.Find(dir, nil), 3)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "skipped", "x.damaged"), 0o700))
	require.Len(t, statefile.Find(dir, func(path string) bool { return filepath.Base(path) == "skipped" }), 3)
	require.Len(t, statefile.Find(dir, nil), 4)
}
