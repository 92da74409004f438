package wakeup_test

import (
	"context"
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
		began, until := time.Now(), time.Now().Add(time.Hour)
		state := func() (<-chan struct{}, time.Duration) { return changes.Changed(), time.Until(until) }
		time.AfterFunc(time.Second, func() {
			until = began.Add(2 * time.Second)
			changes.Notify()
		})
		wakeup.WaitWhile(t.Context(), clock.RealClock{}, state)
		require.Equal(t, 2*time.Second, time.Since(began), "the rest of the time that is left since the change")

		until = began.Add(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wakeup.WaitWhile(ctx, clock.RealClock{}, state)
		require.Equal(t, 3*time.Second, time.Since(began))
	})
}
