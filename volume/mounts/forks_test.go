package mounts_test

import (
	"context"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/volume/mounts"
)

// TestUnmountWhileProgramsStart unmounts what was just read, while other goroutines start programs. Between fork and exec such a
// program has the files of this process, also those that were closed meanwhile.
func TestUnmountWhileProgramsStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	defer starting.Wait()
	defer cancel()
	for range 4 {
		starting.Go(func() {
			for ctx.Err() == nil {
				_ = exec.CommandContext(ctx, "true").Run()
			}
		})
	}
	target := realDir(t)
	for range 2000 {
		require.NoError(t, mounts.Syscalls{}.Mount("tmpfs", target, "tmpfs", nil))
		dir, err := os.Open(target)
		require.NoError(t, err)
		require.NoError(t, dir.Close())
		require.NoError(t, mounts.Syscalls{}.Unmount(target))
	}
}
