package wakeup_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/wakeup"
)

func TestSleepEndsAfterItsTimeOrWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.True(t, wakeup.Sleep(t.Context(), clock.RealClock{}, time.Minute))
		require.Equal(t, time.Minute, time.Since(began))

		stopped := testclock.NewFakeClock(began)
		require.True(t, wakeup.Sleep(t.Context(), stopped, 0))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.False(t, wakeup.Sleep(ctx, clock.RealClock{}, time.Minute))
		require.Equal(t, time.Minute+time.Second, time.Since(began))
	})
}

func TestWaitWhileAsksAgainWhenSomethingChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes wakeup.Broadcast
		var wait atomic.Int64 // since began, a time.Duration
		began := time.Now()
		state := func() (<-chan struct{}, time.Duration) {
			return changes.Changed(), time.Duration(wait.Load()) - time.Since(began)
		}
		wait.Store(int64(time.Hour))
		time.AfterFunc(time.Second, func() {
			wait.Store(int64(2 * time.Second))
			changes.Notify()
		})
		wakeup.WaitWhile(t.Context(), clock.RealClock{}, state)
		require.Equal(t, 2*time.Second, time.Since(began), "the rest of the time that is left since the change")

		wait.Store(int64(time.Hour))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wakeup.WaitWhile(ctx, clock.RealClock{}, state)
		require.Equal(t, 3*time.Second, time.Since(began))
	})
}
