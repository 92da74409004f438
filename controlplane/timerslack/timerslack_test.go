package timerslack

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestTimersOfAllThreadsButTheMonitor(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := os.ReadFile("/proc/self/timerslack_ns")
	require.NoError(t, err)
	if os.Geteuid() != 0 {
		t.Skip("the timers of other threads need CAP_SYS_NICE")
	}
	require.NoError(t, Set(25*time.Millisecond))
	t.Cleanup(func() { require.NoError(t, Set(50*time.Microsecond)) })

	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	require.NoError(t, err)
	require.Equal(t, 25*time.Millisecond, time.Duration(slack))
	dir, err := os.Open("/proc/self/task")
	require.NoError(t, err)
	threads, err := dir.Readdirnames(-1)
	require.NoError(t, err)
	require.NoError(t, dir.Close())
	unchanged := 0
	for _, thread := range threads {
		text, err := os.ReadFile(filepath.Join("/proc", thread, "timerslack_ns"))
		if err == nil && string(text) == string(before) {
			unchanged++
		}
	}
	require.Equal(t, 1, unchanged, "of %s: %s", strings.Join(threads, " "), before)
}
