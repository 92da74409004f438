package containerd

import (
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestSignalsDoNotEndTheWaitForAShim sends signals all the time, as the Go runtime does now and then.
func TestSignalsDoNotEndTheWaitForAShim(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := unix.Gettid()
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Tgkill(os.Getpid(), thread, unix.SIGURG)
			}
		}
	})
	defer group.Wait()
	defer close(stop)

	process := exec.CommandContext(t.Context(), "sleep", "0.2")
	require.NoError(t, process.Start())
	fd, err := unix.PidfdOpen(process.Process.Pid, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.True(t, endsWithin(fd, time.Minute))
	require.NoError(t, process.Wait())

	own, err := unix.PidfdOpen(os.Getpid(), 0)
	require.NoError(t, err)
	defer unix.Close(own)
	require.False(t, endsWithin(own, 10*time.Millisecond))
}
