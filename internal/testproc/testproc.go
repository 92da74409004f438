// Package testproc ends processes that a test has left, for the tests that clean up behind others.
package testproc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// KillAndWait kills a process, which need not be a child, and returns when it has ended. One that has ended already is
// fine; one that does not end within patience fails the test.
func KillAndWait(t testing.TB, pid int, patience time.Duration) {
	t.Helper()
	process, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return
	}
	require.NoError(t, err)
	defer unix.Close(process)
	if err := unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0); err != unix.ESRCH {
		require.NoError(t, err)
	}
	ended, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, int(patience.Milliseconds()))
	require.NoError(t, err)
	require.NotZero(t, ended, "process %d does not end", pid)
}
