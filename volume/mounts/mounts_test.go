package mounts_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/volume/mounts"
)

// realDir is a temporary directory below which the test may mount; at the end nothing may be mounted there.
func realDir(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root: run the tests as root")
	}
	dir := t.TempDir()
	t.Cleanup(func() {
		left, err := mounts.ListBelow(dir)
		require.NoError(t, err)
		if !t.Failed() {
			require.Empty(t, left, "mounts left behind")
		}
		_ = mounts.UnmountAll(context.WithoutCancel(t.Context()), mounts.Syscalls{}, dir)
		for _, path := range left {
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
	})
	return dir
}

func mkdir(t *testing.T, path ...string) string {
	t.Helper()
	dir := filepath.Join(path...)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	return dir
}

func touch(t *testing.T, path string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o644))
}

func TestMountOptions(t *testing.T) {
	dir := realDir(t)
	m := mounts.Syscalls{}
	source, target := mkdir(t, dir, "source"), mkdir(t, dir, "target")
	require.NoError(t, m.Mount(source, target, "", []string{"bind", "ro"}))
	require.ErrorIs(t, os.WriteFile(filepath.Join(target, "f"), nil, 0o644), unix.EROFS)
	touch(t, filepath.Join(source, "f"))
	is, err := m.IsMountPoint(target)
	require.NoError(t, err)
	require.True(t, is)
	is, err = m.IsMountPoint(source)
	require.NoError(t, err)
	require.False(t, is)
	_, err = m.IsMountPoint(filepath.Join(dir, "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, m.Mount("tmpfs", target, "tmpfs", []string{"size=1048576", "nosuid"}))
	var stat unix.Statfs_t
	require.NoError(t, unix.Statfs(target, &stat))
	require.EqualValues(t, 1<<20, stat.Blocks*uint64(stat.Bsize))
	require.NoError(t, mounts.UnmountPoint(t.Context(), m, target), "both layers must go")
	require.NoError(t, mounts.UnmountPoint(t.Context(), m, filepath.Join(dir, "missing")))
	require.Error(t, m.Mount("tmpfs", target, "tmpfs", []string{"nonsense=1"}))
}

// TestReadOnlyBindKeepsRestrictions binds a directory of a file system that an administrator has restricted.
func TestReadOnlyBindKeepsRestrictions(t *testing.T) {
	dir := realDir(t)
	m := mounts.Syscalls{}
	source, target := mkdir(t, dir, "source"), mkdir(t, dir, "target")
	require.NoError(t, m.Mount("tmpfs", source, "tmpfs", []string{"nosuid", "nodev", "noexec", "noatime"}))
	require.NoError(t, m.Mount(source, target, "", []string{"bind", "ro"}))
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(target, &fs))
	const want = unix.ST_RDONLY | unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC | unix.ST_NOATIME
	require.EqualValues(t, want, fs.Flags&(want|unix.ST_RELATIME))
	require.NoError(t, m.Unmount(target))
	require.NoError(t, m.Unmount(source))
}

func TestRemoveTreeStopsAtMounts(t *testing.T) {
	for _, kind := range []string{"directory", "file"} {
		t.Run(kind, func(t *testing.T) {
			dir := realDir(t)
			m := mounts.Syscalls{}
			// A bind mount of the same file system: a comparison of device numbers would not see it.
			outside, tree := mkdir(t, dir, "outside"), mkdir(t, dir, "tree")
			source, target := outside, mkdir(t, tree, "a", "b", "mounted")
			touch(t, filepath.Join(outside, "data"))
			if kind == "file" {
				source, target = filepath.Join(outside, "data"), filepath.Join(tree, "file")
				touch(t, target)
			}
			require.NoError(t, m.Mount(source, target, "", []string{"bind"}))
			require.ErrorIs(t, mounts.RemoveTree(tree), mounts.ErrMountPoint)
			require.FileExists(t, filepath.Join(outside, "data"))
			require.NoError(t, mounts.UnmountAndRemoveAll(t.Context(), m, tree))
			require.NoDirExists(t, tree)
			require.FileExists(t, filepath.Join(outside, "data"))
		})
	}
}

func TestRemoveTreeDoesNotFollowLinks(t *testing.T) {
	dir := t.TempDir()
	outside, tree := mkdir(t, dir, "outside"), mkdir(t, dir, "tree")
	touch(t, filepath.Join(outside, "data"))
	require.NoError(t, os.Symlink(outside, filepath.Join(tree, "link")))
	require.NoError(t, os.Symlink("missing", filepath.Join(tree, "dangling")))
	require.NoError(t, mounts.RemoveTree(tree))
	require.NoDirExists(t, tree)
	require.FileExists(t, filepath.Join(outside, "data"))
	require.NoError(t, mounts.RemoveTree(tree), "a missing tree is fine")
	require.NoError(t, mounts.RemoveTree(filepath.Join(tree, "below")))
}

func TestRemoveTreeOfAnyDepthAndWidth(t *testing.T) {
	dir := t.TempDir()
	tree := mkdir(t, dir, "tree")
	for i := range 3000 {
		touch(t, filepath.Join(tree, strconv.Itoa(i)))
	}
	// Too deep for a path name: made step by step with open directories, as a hostile container would.
	fd, err := unix.Open(tree, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	require.NoError(t, err)
	for range 6000 {
		require.NoError(t, unix.Mkdirat(fd, "d", 0o755))
		next, err := unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		fd = next
	}
	require.NoError(t, unix.Close(fd))
	require.NoError(t, mounts.RemoveTree(tree))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestUnmountAndRemoveDirKeepsData(t *testing.T) {
	dir := realDir(t)
	m := mounts.Syscalls{}
	data, target := mkdir(t, dir, "data"), mkdir(t, dir, "target")
	touch(t, filepath.Join(data, "f"))
	require.NoError(t, m.Mount(data, target, "", []string{"bind"}))
	require.NoError(t, mounts.UnmountAndRemoveDir(t.Context(), m, target))
	require.NoDirExists(t, target)
	require.FileExists(t, filepath.Join(data, "f"))
	require.NoError(t, mounts.UnmountAndRemoveDir(t.Context(), m, target), "again")
	touch(t, filepath.Join(mkdir(t, dir, "target"), "f"))
	require.ErrorContains(t, mounts.UnmountAndRemoveDir(t.Context(), m, target), "holds files")
	require.FileExists(t, filepath.Join(target, "f"))
}

func TestMakeSharedTouchesOnlyTheDirectory(t *testing.T) {
	dir := realDir(t)
	m := mounts.Syscalls{}
	// On a private mount of its own, so that the test does not depend on how the machine's root is mounted.
	base := mkdir(t, dir, "base")
	require.NoError(t, m.Mount("tmpfs", base, "tmpfs", []string{"private"}))
	root := mkdir(t, base, "root")
	own, err := mounts.MakeShared(m, root)
	require.NoError(t, err)
	require.True(t, own)
	own, err = mounts.MakeShared(m, root)
	require.NoError(t, err)
	require.True(t, own, "again, as after a crash")
	left, err := mounts.ListBelow(root)
	require.NoError(t, err)
	require.Len(t, left, 1, "the second time must not mount again")
	_, err = mounts.MakeShared(m, mkdir(t, root, "below"))
	require.NoError(t, err)
	left, err = mounts.ListBelow(root)
	require.NoError(t, err)
	require.Len(t, left, 1, "a directory on a shared mount needs nothing")
	require.NoError(t, mounts.ReleaseShared(m, root))
	is, err := m.IsMountPoint(root)
	require.NoError(t, err)
	require.False(t, is)
	require.NoError(t, mounts.ReleaseShared(m, base), "a mount that is no bind of itself stays")
	is, err = m.IsMountPoint(base)
	require.NoError(t, err)
	require.True(t, is)
	require.NoError(t, m.Unmount(base))
}

func TestReleaseSharedOfADirectoryWithASocket(t *testing.T) {
	dir := realDir(t)
	m := mounts.Syscalls{}
	base := mkdir(t, dir, "base")
	require.NoError(t, m.Mount("tmpfs", base, "tmpfs", []string{"private"}))
	root := mkdir(t, base, "root")
	own, err := mounts.MakeShared(m, root)
	require.NoError(t, err)
	require.True(t, own)
	path := filepath.Join(root, "s")
	listener, err := net.Listen("unix", path)
	require.NoError(t, err)
	require.ErrorIs(t, m.Unmount(root), unix.EBUSY, "a socket keeps its mount busy")
	require.NoError(t, mounts.ReleaseShared(m, root))
	left, err := mounts.ListBelow(root)
	require.NoError(t, err)
	require.Empty(t, left)
	conn, err := net.Dial("unix", path)
	require.NoError(t, err, "the socket is still there")
	require.NoError(t, conn.Close())
	require.NoError(t, listener.Close())
	require.NoError(t, m.Unmount(base))
}
