// Package testproc cleans up what tests create outside of their own process, also when their process is killed before
// they end.
package testproc

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// KillAndWait kills a process, which need not be a child, and returns when it has ended. A process that has already ended
// is no error; one that does not end within timeout fails the test.
func KillAndWait(t testing.TB, pid int, timeout time.Duration) {
	t.Helper()
	require.NoError(t, killAndWait(pid, timeout))
}

func killAndWait(pid int, timeout time.Duration) error {
	process, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(process)
	if err := unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	ended := 0
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		ended, err = unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, int(timeout.Milliseconds()))
	}
	if err != nil {
		return fmt.Errorf("wait for the end of process %d: %w", pid, err)
	}
	if ended == 0 {
		return fmt.Errorf("process %d does not end", pid)
	}
	return nil
}
