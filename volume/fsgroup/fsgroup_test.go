package fsgroup_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/volume/fsgroup"
	"github.com/berth-dev/berth/volume/mounts"
)

func gidAndMode(t *testing.T, path string) (uint32, os.FileMode) {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	return info.Sys().(*syscall.Stat_t).Gid, info.Mode()
}

func tree(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("changing groups needs root: run the tests as root")
	}
	dir := filepath.Join(t.TempDir(), "volume")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "sub"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "sub", "file"), nil, 0o600))
	outside := filepath.Join(filepath.Dir(dir), "outside")
	require.NoError(t, os.WriteFile(outside, nil, 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "link")))
	return dir
}

func TestApply(t *testing.T) {
	for _, test := range []struct {
		name      string
		readOnly  bool
		dir, file os.FileMode
	}{
		{"read-write", false, 0o770, 0o660},
		{"read-only", true, 0o750, 0o640},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := tree(t)
			changed, err := fsgroup.Apply(t.Context(), dir, fsgroup.Options{GID: 1234, ReadOnly: test.readOnly})
			require.NoError(t, err)
			require.Equal(t, 4, changed)
			for path, want := range map[string]os.FileMode{
				"": test.dir | os.ModeDir | os.ModeSetgid, "sub": test.dir | os.ModeDir | os.ModeSetgid,
				"sub/file": test.file,
			} {
				gid, mode := gidAndMode(t, filepath.Join(dir, path))
				require.EqualValues(t, 1234, gid, path)
				require.Equal(t, want, mode, path)
			}
			gid, _ := gidAndMode(t, filepath.Join(dir, "link"))
			require.EqualValues(t, 1234, gid)
			gid, mode := gidAndMode(t, filepath.Join(filepath.Dir(dir), "outside"))
			require.Zero(t, gid, "a link must not be followed")
			require.Equal(t, os.FileMode(0o600), mode)
			changed, err = fsgroup.Apply(t.Context(), dir, fsgroup.Options{GID: 1234, ReadOnly: test.readOnly})
			require.NoError(t, err)
			require.Zero(t, changed, "the second time there is nothing to change")
		})
	}
}

func TestOnRootMismatch(t *testing.T) {
	dir := tree(t)
	options := fsgroup.Options{GID: 1234, Policy: corev1.FSGroupChangeOnRootMismatch}
	changed, err := fsgroup.Apply(t.Context(), dir, options)
	require.NoError(t, err)
	require.Equal(t, 4, changed, "the root does not match yet")
	file := filepath.Join(dir, "sub", "file")
	require.NoError(t, os.Chown(file, 0, 0))
	_, err = fsgroup.Apply(t.Context(), dir, options)
	require.NoError(t, err)
	gid, _ := gidAndMode(t, file)
	require.Zero(t, gid, "the root matches: the rest is not changed")
	options.Policy = corev1.FSGroupChangeAlways
	changed, err = fsgroup.Apply(t.Context(), dir, options)
	require.NoError(t, err)
	require.Equal(t, 1, changed)
}

// TestFilesThatCannotBeChangedStayAsTheyAre is about a volume whose file system does not accept groups: a Pod can have its volume all the same.
func TestFilesThatCannotBeChangedStayAsTheyAre(t *testing.T) {
	dir := tree(t)
	readOnly := filepath.Join(filepath.Dir(dir), "mounted")
	require.NoError(t, os.Mkdir(readOnly, 0o700))
	require.NoError(t, mounts.Syscalls{}.Mount(dir, readOnly, "", []string{"bind", "ro"}))
	t.Cleanup(func() { require.NoError(t, mounts.Syscalls{}.Unmount(readOnly)) })
	refused, reason, failed := 0, error(nil), errors.New("not called")
	changed, err := fsgroup.Apply(t.Context(), readOnly, fsgroup.Options{
		GID: 1234, OnRefused: func(files int, first error) { refused, reason = files, first },
		OnDone: func(_ time.Duration, err error) { failed = err },
	})
	require.NoError(t, err)
	require.Zero(t, changed)
	require.NoError(t, failed)
	require.Equal(t, 4, refused)
	require.ErrorIs(t, reason, syscall.EROFS)
	gid, mode := gidAndMode(t, filepath.Join(dir, "sub", "file"))
	require.Zero(t, gid)
	require.Equal(t, os.FileMode(0o600), mode)
}

func TestProgressIsReported(t *testing.T) {
	dir := tree(t)
	clock := testclock.NewFakeClock(time.Now())
	progress := make(chan int64, 10)
	// The context blocks the walk, which is too short otherwise.
	release := make(chan struct{})
	ctx := blockingContext{Context: t.Context(), release: release}
	done := make(chan error, 1)
	go func() {
		_, err := fsgroup.Apply(ctx, dir, fsgroup.Options{GID: 1234, Clock: clock, OnProgress: func(files int64) { progress <- files }})
		done <- err
	}()
	require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
	clock.Step(29 * time.Second)
	require.Empty(t, progress)
	clock.Step(time.Second)
	require.GreaterOrEqual(t, <-progress, int64(0))
	require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
	clock.Step(time.Minute)
	<-progress
	close(release)
	require.NoError(t, <-done)
	require.False(t, clock.HasWaiters(), "the timer is stopped")
}

// blockingContext is a context whose Err blocks until release is closed.
type blockingContext struct {
	context.Context
	release <-chan struct{}
}

func (h blockingContext) Err() error {
	<-h.release
	return h.Context.Err()
}
