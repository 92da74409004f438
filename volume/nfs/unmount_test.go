package nfs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/testsuite"
)

// TestUnmountingEndsWithoutTheServer has scripts in the place of umount and stat that never end by themselves, as the programs with a server
// that does not answer. The last argument is the mount's.
func TestUnmountingEndsWithoutTheServer(t *testing.T) {
	const (
		waits, busy = "exec sleep 1000", "echo target is busy >&2; exit 32"
		lazy        = `[ "$3" = --lazy ] && exec umount --lazy "$4"; `
		short       = 100 * time.Millisecond
	)
	for _, c := range []struct {
		name, umount, stat string
		timeout            time.Duration
		err                string
	}{
		{"the mount is gone and umount waits", `umount "$3"; ` + waits, "exit 0", 2 * time.Second, ""},
		{"the mount is gone and umount fails", `umount "$3"; exit 1`, "exit 0", time.Minute, ""},
		{"the mount is in use by those that wait for the server", lazy + busy, waits, short, ""},
		{"the mount is in use by others", lazy + busy, "exit 0", time.Minute, "target is busy"},
		{"the mount stays", waits, waits, short, "did not answer for 100ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := testsuite.Root(t)
			target := filepath.Join(dir, "share")
			require.NoError(t, os.Mkdir(target, 0o700))
			require.NoError(t, mounts.Syscalls{}.Mount("tmpfs", target, "tmpfs", nil))
			t.Cleanup(func() { _ = mounts.Syscalls{}.Unmount(target) })
			u := processUnmounter{
				Mounter: mounts.Syscalls{}, umount: script(t, dir, "umount", c.umount), stat: script(t, dir, "stat", c.stat),
				unmountTimeout: c.timeout, answerTimeout: c.timeout, killTimeout: time.Minute,
			}
			err := u.Unmount(target)
			for c.err == "" && err != nil && t.Context().Err() == nil { // a busy machine may not come to a script's first step in time
				err = u.Unmount(target)
			}
			if c.err != "" {
				require.ErrorContains(t, err, "unmount "+target)
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.False(t, u.isMounted(target))
		})
	}
}

func script(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	return path
}

// TestUnmountingWithoutTheProgram runs where umount(8) does not exist.
func TestUnmountingWithoutTheProgram(t *testing.T) {
	target := testsuite.Root(t)
	require.NoError(t, mounts.Syscalls{}.Mount("tmpfs", target, "tmpfs", nil))
	u := processUnmounter{Mounter: mounts.Syscalls{}, umount: "/no/umount"}
	require.NoError(t, u.Unmount(target))
	require.False(t, u.isMounted(target))
}
