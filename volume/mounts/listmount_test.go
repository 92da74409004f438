package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// makeMounts mounts a few things at and below a directory, one on top of another among them, and beside it.
func makeMounts(t testing.TB, n int) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root: run the tests as root")
	}
	base := t.TempDir()
	dir := filepath.Join(base, `tree with "\ `)
	targets := []string{dir, filepath.Join(dir, "a"), filepath.Join(dir, "a"), filepath.Join(dir, "a", "b"), base + "/beside"}
	for i := range n {
		targets = append(targets, filepath.Join(dir, "many", strconv.Itoa(i)))
	}
	for i, target := range targets {
		require.NoError(t, os.MkdirAll(target, 0o755))
		if i == 3 {
			require.NoError(t, os.MkdirAll(filepath.Join(target, "plain"), 0o755))
		}
		require.NoError(t, Syscalls{}.Mount("tmpfs", target, "tmpfs", nil))
		t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
	}
	return dir
}

func TestBothWaysOfListingAgree(t *testing.T) {
	dir := makeMounts(t, 600) // more than one answer of the kernel holds
	for _, below := range []string{dir, filepath.Join(dir, "a"), filepath.Join(dir, "a", "b"), filepath.Join(dir, "many")} {
		want, err := listByMountinfo(below)
		require.NoError(t, err)
		require.NotEmpty(t, want)
		got, err := listByListmount(below)
		if errors.Is(err, errNoListmount) {
			t.Skip("this kernel has no listmount")
		}
		require.NoError(t, err)
		slices.Sort(got)
		slices.Sort(want)
		require.Equal(t, want, got)
	}
	got, err := listByListmount(filepath.Join(dir, "missing"))
	require.NoError(t, err)
	require.Empty(t, got)
	root, err := ListBelow("/")
	require.NoError(t, err)
	require.Contains(t, root, "/")
}

func BenchmarkListBelow(b *testing.B) {
	dir := makeMounts(b, 1000)
	for name, list := range map[string]func(string) ([]string, error){"listmount": listByListmount, "mountinfo": listByMountinfo} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := list(filepath.Join(dir, "a")); err != nil {
					b.Skip(err)
				}
			}
		})
	}
}
