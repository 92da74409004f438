package volumemanager_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/volume"
)

// immutable is FS_IMMUTABLE_FL of <linux/fs.h>.
const immutable = 0x10

// setImmutable makes the kernel refuse every change of a directory, or ends that. The test is skipped where that
// cannot be.
func setImmutable(t *testing.T, dir string, on bool) {
	t.Helper()
	file, err := os.Open(dir)
	require.NoError(t, err)
	defer file.Close()
	flags, err := unix.IoctlGetInt(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		t.Skipf("this file system has no flags: %v", err)
	}
	flags &^= immutable
	if on {
		flags |= immutable
	}
	if err := unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, flags); err != nil {
		t.Skipf("this process may not make a directory immutable: %v", err)
	}
}

func TestImmutableVolumeDirectory(t *testing.T) {
	f := newFixture(t)
	p := pod("a", emptyDir("v"))
	dir := volume.PodVolumesDir(f.root, p.UID)
	require.NoError(t, os.MkdirAll(dir, 0o750))
	setImmutable(t, dir, true)
	t.Cleanup(func() {
		if _, err := os.Stat(dir); err == nil {
			setImmutable(t, dir, false)
		}
	})
	done := f.startMount(p)
	event := f.nextEvent()
	for _, words := range []string{"FailedMount", `emptyDir "v"`, "operation not permitted", "immutable", "lsattr"} {
		require.Contains(t, event, words)
	}
	require.NoError(t, f.Mount(t.Context(), pod("b", emptyDir("v"))), "other Pods are not affected")
	require.NoError(t, f.Unmount(t.Context(), "b"))

	// Unmount fails, too, and is retried until the directory is mutable again.
	setImmutable(t, dir, false)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "kubernetes.io~empty-dir", "v"), 0o750))
	setImmutable(t, filepath.Join(dir, "kubernetes.io~empty-dir"), true)
	unmounted := make(chan error, 1)
	go func() { unmounted <- f.Unmount(t.Context(), p.UID) }()
	event = f.nextEvent()
	for _, words := range []string{"FailedUnmount", `"v"`, "lsattr"} {
		require.Contains(t, event, words)
	}
	require.Error(t, f.result(done))
	setImmutable(t, filepath.Join(dir, "kubernetes.io~empty-dir"), false)
	f.step(500 * time.Millisecond)
	require.NoError(t, f.result(unmounted))
	require.NoDirExists(t, dir)
}
