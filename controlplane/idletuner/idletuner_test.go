package idletuner

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const late = 25 * time.Millisecond

// run runs the tuner until the test ends.
func run(t *testing.T, tuner *Tuner) {
	if os.Geteuid() != 0 {
		t.Skip("the timers of other threads need CAP_SYS_NICE")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- tuner.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
		require.Zero(t, lateThreads(t), "timers are late after the end")
	})
}

// lateThreads counts the threads of this process whose timers are late.
func lateThreads(t *testing.T) int {
	threads, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	count := 0
	for _, thread := range threads {
		text, err := os.ReadFile(filepath.Join("/proc", thread.Name(), "timerslack_ns"))
		if err == nil && strings.TrimSpace(string(text)) == strconv.FormatInt(late.Nanoseconds(), 10) {
			count++
		}
	}
	return count
}

func TestTheProcessIsSlowUntilTheFirstUse(t *testing.T) {
	processors := runtime.GOMAXPROCS(0)
	tuner := New(late, 300*time.Millisecond)
	run(t, tuner)
	for range 3 {
		require.Eventually(t, func() bool {
			return lateThreads(t) > 1 && runtime.GOMAXPROCS(0) == 1
		}, time.Minute, time.Millisecond, "not in use")
		require.Eventually(t, func() bool {
			tuner.Use()
			return lateThreads(t) == 0 && runtime.GOMAXPROCS(0) == processors
		}, time.Minute, time.Millisecond, "in use")
	}
}

func TestTheProcessIsInUseUntilTheRestHasPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tuner, began := New(late, 2*time.Second), time.Now()
		go func() {
			for range 10 {
				time.Sleep(time.Second)
				tuner.Use()
			}
		}()
		seen, resting := tuner.waitRest(t.Context())
		require.True(t, resting)
		require.EqualValues(t, 10, seen)
		require.GreaterOrEqual(t, time.Since(began), 12*time.Second)
		require.LessOrEqual(t, time.Since(began), 14*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, resting = tuner.waitRest(ctx)
		require.False(t, resting)
	})
}

func TestAUseBetweenTheRestAndTheSleepIsSeen(t *testing.T) {
	tuner := New(late, time.Millisecond)
	seen, resting := tuner.waitRest(t.Context())
	require.True(t, resting)
	tuner.Use()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // it sleeps until then if it does not see the use
	defer cancel()
	require.NoError(t, tuner.sleep(ctx, seen, 50*time.Microsecond))
	require.NoError(t, ctx.Err(), "it slept")
}
