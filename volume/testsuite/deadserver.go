package testsuite

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// DeadFileServer mounts a file system at path whose server never responds, as that of an NFS share whose server is gone: each
// call that needs the server hangs until stop is called. The test skips where there is no FUSE.
func DeadFileServer(t testing.TB, path string) (stop func()) {
	t.Helper()
	server, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no FUSE: %v", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", server.Fd())
	require.NoError(t, unix.Mount("dead", path, "fuse", 0, options))
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			require.NoError(t, server.Close()) // ends the calls that hang
			require.NoError(t, unix.Unmount(path, unix.MNT_DETACH))
		}
	}
	t.Cleanup(stop)
	return stop
}
