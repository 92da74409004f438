package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestOutputReplacesRegularFilesOnly(t *testing.T) {
	hello := func(w io.Writer) error {
		_, err := io.WriteString(w, "hello")
		return err
	}
	dir := t.TempDir()
	file, link, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	require.NoError(t, os.Symlink("file", link))
	for _, path := range []string{file, link} { // made, replaced
		require.NoError(t, replaceFile(path, hello))
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, "hello", string(data))
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
		require.NoError(t, os.WriteFile(file, []byte("old"), 0o600))
	}
	target, err := os.Readlink(link)
	require.NoError(t, err, "the link is still one")
	require.Equal(t, "file", target)

	require.ErrorIs(t, replaceFile(file, func(io.Writer) error { return io.ErrNoProgress }), io.ErrNoProgress)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "old", string(data))

	var usage usageError
	require.True(t, errors.As(replaceFile(dir, hello), &usage))

	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0)
	require.NoError(t, err)
	defer reader.Close()
	require.NoError(t, replaceFile(pipe, hello))
	received := make([]byte, len("hello"))
	_, err = io.ReadFull(reader, received)
	require.NoError(t, err)
	require.Equal(t, "hello", string(received))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 3, "nothing else is left")
}
