package boottime_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/berth-dev/berth/internal/boottime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestClockShowsTheTimeOfDayAndGoesOn(t *testing.T) {
	c := boottime.New()
	began := c.Now()
	require.WithinDuration(t, time.Now(), began, time.Minute)
	require.NotContains(t, began.String(), "m=", "a reading of the runtime's clock, which stands still while the machine sleeps, would be used to compare it")
	<-c.After(5 * time.Millisecond)
	require.GreaterOrEqual(t, c.Since(began), 5*time.Millisecond)
}

func TestTimers(t *testing.T) {
	c := boottime.New()
	past := c.NewTimer(-time.Hour)
	<-past.C()
	require.False(t, past.Stop(), "it has fired")

	timer := c.NewTimer(time.Hour)
	require.True(t, timer.Stop())
	require.False(t, timer.Stop())
	require.False(t, timer.Reset(time.Hour))
	require.True(t, timer.Reset(time.Millisecond))
	began := c.Now()
	require.False(t, (<-timer.C()).Before(began))
	require.False(t, timer.Reset(0))
	require.Eventually(t, func() bool { return len(timer.C()) == 1 }, time.Minute, time.Millisecond)
	require.False(t, timer.Stop(), "it has fired")
	require.Empty(t, timer.C(), "what was not received is not left for the next start")
	requireNoTimerLeft(t)
}

// TestTimersThatFireAsTheyAreStopped leaves neither a value nor a descriptor.
func TestTimersThatFireAsTheyAreStopped(t *testing.T) {
	c := boottime.New()
	timer := c.NewTimer(time.Hour)
	for i := range 200 {
		timer.Reset(time.Duration(i) * time.Microsecond)
		timer.Stop()
		require.Empty(t, timer.C())
	}
	requireNoTimerLeft(t)
}

// requireNoTimerLeft waits until the process has no timer of the kernel: one that has fired is closed a moment later.
func requireNoTimerLeft(t *testing.T) {
	t.Helper()
	const dir = "/proc/self/fd"
	require.Eventually(t, func() bool {
		entries, err := os.ReadDir(dir)
		return err == nil && !slices.ContainsFunc(entries, func(e os.DirEntry) bool {
			what, err := os.Readlink(filepath.Join(dir, e.Name()))
			return err == nil && strings.Contains(what, "timerfd")
		})
	}, time.Minute, time.Millisecond)
}
