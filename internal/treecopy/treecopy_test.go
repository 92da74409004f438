package treecopy

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestCopyHasAllOfTheOriginal(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	require.NoError(t, os.MkdirAll(filepath.Join(from, "dir"), 0o751))
	file := filepath.Join(from, "dir", "file")
	require.NoError(t, os.WriteFile(file, []byte("content"), 0o640))
	require.NoError(t, unix.Chmod(file, 0o4750))
	past := time.Unix(1_000_000_000, 123)
	require.NoError(t, os.Chtimes(file, past, past))
	require.NoError(t, os.Link(file, filepath.Join(from, "other-name")))
	require.NoError(t, os.Symlink("dir/file", filepath.Join(from, "link")))
	require.NoError(t, unix.Mkfifo(filepath.Join(from, "fifo"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(from, "skipped"), nil, 0o600))
	sparse, err := os.Create(filepath.Join(from, "sparse"))
	require.NoError(t, err)
	_, err = sparse.WriteAt([]byte("end"), 64<<20)
	require.NoError(t, err)
	require.NoError(t, sparse.Close())
	attribute := unix.Setxattr(file, "user.name", []byte("value"), 0) // not every filesystem has them

	stats, err := Copy(t.Context(), from, to, func(path string) bool { return path == "skipped" })
	require.NoError(t, err)
	require.Equal(t, 2, stats.Files)

	copied := filepath.Join(to, "dir", "file")
	data, err := os.ReadFile(copied)
	require.NoError(t, err)
	require.Equal(t, "content", string(data))
	var stat, other unix.Stat_t
	require.NoError(t, unix.Lstat(copied, &stat))
	require.EqualValues(t, 0o4750, stat.Mode&0o7777)
	require.Equal(t, past.UnixNano(), stat.Mtim.Nano())
	require.NoError(t, unix.Lstat(filepath.Join(to, "other-name"), &other))
	require.Equal(t, stat.Ino, other.Ino, "hard links stay")
	link, err := os.Readlink(filepath.Join(to, "link"))
	require.NoError(t, err)
	require.Equal(t, "dir/file", link)
	info, err := os.Lstat(filepath.Join(to, "fifo"))
	require.NoError(t, err)
	require.Equal(t, os.ModeNamedPipe, info.Mode().Type())
	require.NoFileExists(t, filepath.Join(to, "skipped"))
	require.NoError(t, unix.Lstat(filepath.Join(to, "sparse"), &stat))
	require.EqualValues(t, 64<<20+3, stat.Size)
	require.Less(t, stat.Blocks*512, int64(1<<20), "holes stay")
	if attribute == nil {
		value := make([]byte, 16)
		n, err := unix.Getxattr(copied, "user.name", value)
		require.NoError(t, err)
		require.Equal(t, "value", string(value[:n]))
	}
	info, err = os.Stat(filepath.Join(to, "dir"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o751), info.Mode().Perm())
}

func TestCopyLeavesOutWhatIsMounted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	from, to, other := t.TempDir(), filepath.Join(t.TempDir(), "to"), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(other, "secret"), []byte("x"), 0o600))
	point := filepath.Join(from, "mounted")
	require.NoError(t, os.Mkdir(point, 0o700))
	require.NoError(t, unix.Mount(other, point, "", unix.MS_BIND, "")) // of the same filesystem
	t.Cleanup(func() { _ = unix.Unmount(point, unix.MNT_DETACH) })
	_, err := Copy(t.Context(), from, to, nil)
	require.NoError(t, err)
	entries, err := os.ReadDir(filepath.Join(to, "mounted"))
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestCopyStopsAndNamesTheFile(t *testing.T) {
	from := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Copy(ctx, from, filepath.Join(t.TempDir(), "to"), nil)
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, strings.Contains(err.Error(), from), err)
	_, err = Copy(t.Context(), from, t.TempDir(), nil)
	require.ErrorIs(t, err, os.ErrExist)
}
