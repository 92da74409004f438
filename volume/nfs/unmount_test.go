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

// TestUnmountingEndsWithoutTheServer has programs in umount's place that never end by themselves, as umount with a server that does not answer.
func TestUnmountingEndsWithoutTheServer(t *testing.T) {
	for _, c := range []struct {
		name, script string
		timeout      time.Duration
		fails        bool
	}{
		{"the mount is gone and the program waits", `umount "$3"; exec sleep 1000`, 2 * time.Second, false},
		{"the mount stays", "exec sleep 1000", 100 * time.Millisecond, true},
		{"a failure", "echo no >&2; exit 32", time.Minute, true},
		{"a failure after the mount is gone", `umount "$3"; exit 1`, time.Minute, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := testsuite.Root(t)
			program := filepath.Join(t.TempDir(), "umount")
			require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"+c.script+"\n"), 0o755))
			target := filepath.Join(dir, "share")
			require.NoError(t, os.Mkdir(target, 0o700))
			require.NoError(t, mounts.Syscalls{}.Mount("tmpfs", target, "tmpfs", nil))
			t.Cleanup(func() { _ = mounts.Syscalls{}.Unmount(target) })
			u := processUnmounter{Mounter: mounts.Syscalls{}, program: program, timeout: c.timeout, killTimeout: time.Minute}
			err := u.Unmount(target)
			if c.fails {
				require.ErrorContains(t, err, "unmount "+target)
				return
			}
			for err != nil && t.Context().Err() == nil { // a busy machine may not come to the program's first step in time
				err = u.Unmount(target)
			}
			require.NoError(t, err)
			mounted, err := u.IsMountPoint(target)
			require.NoError(t, err)
			require.False(t, mounted)
		})
	}
}

// TestUnmountingWithoutTheProgram runs where umount(8) does not exist.
func TestUnmountingWithoutTheProgram(t *testing.T) {
	target := testsuite.Root(t)
	require.NoError(t, mounts.Syscalls{}.Mount("tmpfs", target, "tmpfs", nil))
	require.NoError(t, processUnmounter{Mounter: mounts.Syscalls{}, program: "/no/umount", timeout: time.Minute, killTimeout: time.Minute}.Unmount(target))
}
