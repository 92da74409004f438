package kubelet

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// hold runs holdLock in the background.
func hold(ctx context.Context, clk clock.WithTicker, path string, yield bool) (held chan struct{}, ended chan error) {
	held, ended = make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- holdLock(ctx, clk, path, yield, func(ctx context.Context) error {
			close(held)
			<-ctx.Done()
			return nil
		})
	}()
	return held, ended
}

// has waits until an agent has the lock.
func has(t *testing.T, held chan struct{}, ended chan error) {
	t.Helper()
	select {
	case <-held:
	case err := <-ended:
		require.FailNow(t, "it ended without having had the lock", "%v", err)
	}
}

// TestSecondAgentEndsTheFirst has two node agents want one lock file.
func TestSecondAgentEndsTheFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	ctx, cancel := context.WithCancel(t.Context())
	held, ended := hold(ctx, clock.RealClock{}, path, true)
	has(t, held, ended)
	second, secondEnded := hold(ctx, clock.RealClock{}, path, true)
	require.ErrorIs(t, <-ended, errContended)
	has(t, second, secondEnded)
	cancel()
	require.NoError(t, <-secondEnded, "it was told to end")
}

// TestAgentThatDoesNotYieldKeepsItsLock lets the second wait, until it is told to end.
func TestAgentThatDoesNotYieldKeepsItsLock(t *testing.T) {
	path, clk := filepath.Join(t.TempDir(), "lock"), clocktesting.NewFakeClock(time.Unix(1e9, 0))
	ctx, cancel := context.WithCancel(t.Context())
	held, ended := hold(ctx, clk, path, false)
	has(t, held, ended)
	waiting, stop := context.WithCancel(t.Context())
	_, secondEnded := hold(waiting, clk, path, false)
	require.Eventually(t, clk.HasWaiters, time.Minute, time.Millisecond)
	stop()
	require.ErrorIs(t, <-secondEnded, context.Canceled)
	later, end := context.WithCancel(t.Context())
	third, thirdEnded := hold(later, clk, path, false)
	cancel()
	require.NoError(t, <-ended)
	require.Eventually(t, func() bool {
		clk.Step(lockRetry)
		select {
		case <-third:
			return true
		default:
			return false
		}
	}, time.Minute, time.Millisecond, "the next has it when the first has let it go")
	end()
	require.NoError(t, <-thirdEnded)
	require.ErrorContains(t, holdLock(t.Context(), clk, "/nowhere/lock", false, nil), "open the node agent's lock file")
}
