package unixsock_test

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/unixsock"
)

func TestReplaceRemovesWhatAnEarlierProcessHasLeft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	for range 2 { // without a file, and with one
		listener, err := unixsock.Replace(t.Context(), path)
		require.NoError(t, err)
		require.NoError(t, listener.Close())
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.MkdirAll(filepath.Join(path, "full"), 0o700))
	_, err := unixsock.Replace(t.Context(), path)
	require.ErrorContains(t, err, "remove the socket of an earlier process")
}

func TestPathsOfAnyLength(t *testing.T) {
	for name, deep := range map[string]string{"short": "d", "long": strings.Repeat("d", 200)} {
		t.Run(name, func(t *testing.T) {
			base, err := os.MkdirTemp("", "s")
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, os.RemoveAll(base)) })
			dir := filepath.Join(base, deep)
			require.NoError(t, os.Mkdir(dir, 0o700))
			path := filepath.Join(dir, "a.sock")
			_, err = unixsock.Dial(t.Context(), path)
			require.ErrorIs(t, err, os.ErrNotExist)
			listener, err := unixsock.Listen(t.Context(), path)
			require.NoError(t, err)
			_, err = unixsock.Listen(t.Context(), path)
			require.ErrorContains(t, err, "address already in use")
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, os.ModeSocket, info.Mode().Type())

			connection, err := unixsock.Dial(t.Context(), path)
			require.NoError(t, err)
			accepted, err := listener.Accept()
			require.NoError(t, err)
			_, err = io.WriteString(connection, "hello")
			require.NoError(t, err)
			require.NoError(t, connection.Close())
			said, err := io.ReadAll(accepted)
			require.NoError(t, err)
			require.Equal(t, "hello", string(said))
			require.NoError(t, accepted.Close())

			require.NoError(t, listener.Close())
			require.NoFileExists(t, path)
			again, err := unixsock.Listen(t.Context(), path)
			require.NoError(t, err)
			require.Error(t, listener.Close(), "a second time")
			require.FileExists(t, path, "which is the next one's")
			require.NoError(t, again.Close())
			open, err := filepath.Glob("/proc/self/fd/*")
			require.NoError(t, err)
			for _, fd := range open {
				to, _ := os.Readlink(fd) // the directory's own is gone by now
				require.NotEqual(t, dir, to, "left open")
			}
		})
	}
	_, err := unixsock.Dial(t.Context(), filepath.Join(os.TempDir(), strings.Repeat("n", 108)))
	require.ErrorContains(t, err, "name")
	require.ErrorContains(t, err, "too long")
}
