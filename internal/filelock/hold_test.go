package filelock

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// hold runs Hold in the background.
func hold(ctx context.Context, clock clock.WithTicker, path string, exitOnContention bool) (held chan struct{}, ended chan error) {
	held, ended = make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- Hold(ctx, clock, path, exitOnContention, func(ctx context.Context) error {
			close(held)
			<-ctx.Done()
			return nil
		})
	}()
	return held, ended
}

// requireHeld waits until the lock is held.
func requireHeld(t *testing.T, held chan struct{}, ended chan error) {
	t.Helper()
	select {
	case <-held:
	case err := <-ended:
		require.FailNow(t, "it ended without having held the lock", "%v", err)
	}
}

// TestHoldExitsOnContention has two holders compete for one lock file.
func TestHoldExitsOnContention(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	ctx, cancel := context.WithCancel(t.Context())
	held, ended := hold(ctx, clock.RealClock{}, path, true)
	requireHeld(t, held, ended)
	second, secondEnded := hold(ctx, clock.RealClock{}, path, true)
	require.ErrorIs(t, <-ended, ErrContended)
	requireHeld(t, second, secondEnded)
	cancel()
	require.NoError(t, <-secondEnded, "its context was cancelled")
}

// TestHoldWaitsForTheLock has the second holder wait until its context ends, and a third one until the first has ended.
func TestHoldWaitsForTheLock(t *testing.T) {
	path, fakeClock := filepath.Join(t.TempDir(), "lock"), clocktesting.NewFakeClock(time.Unix(1e9, 0))
	ctx, cancel := context.WithCancel(t.Context())
	held, ended := hold(ctx, fakeClock, path, false)
	requireHeld(t, held, ended)
	waiting, stop := context.WithCancel(t.Context())
	_, secondEnded := hold(waiting, fakeClock, path, false)
	require.Eventually(t, fakeClock.HasWaiters, time.Minute, time.Millisecond)
	stop()
	require.ErrorIs(t, <-secondEnded, context.Canceled)
	later, end := context.WithCancel(t.Context())
	third, thirdEnded := hold(later, fakeClock, path, false)
	cancel()
	require.NoError(t, <-ended)
	require.Eventually(t, func() bool {
		fakeClock.Step(retryPeriod)
		select {
		case <-third:
			return true
		default:
			return false
		}
	}, time.Minute, time.Millisecond, "the third has the lock once the first has released it")
	end()
	require.NoError(t, <-thirdEnded)
	require.ErrorContains(t, Hold(t.Context(), fakeClock, "/nowhere/lock", false, nil), "open lock file")
}
