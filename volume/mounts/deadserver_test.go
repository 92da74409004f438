package mounts_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/testsuite"
)

// TestMountPointOfADeadFileServer asks about a mount whose server does not respond.
func TestMountPointOfADeadFileServer(t *testing.T) {
	dir := testsuite.Root(t)
	stop := testsuite.DeadFileServer(t, dir)
	found := make(chan bool, 1)
	go func() {
		mounted, err := mounts.Syscalls{}.IsMountPoint(dir)
		found <- mounted && err == nil
	}()
	select {
	case mounted := <-found:
		require.True(t, mounted)
	case <-time.After(10 * time.Second):
		stop()
		<-found
		require.Fail(t, "the check waits for the file server")
	}
}
