package wallclock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/controlplane/wallclock"
)

func TestWaitEndsAtTheTime(t *testing.T) {
	until := time.Now().Add(50 * time.Millisecond)
	require.NoError(t, wallclock.Wait(t.Context(), until))
	require.False(t, time.Now().Round(0).Before(until.Round(0)))
	require.NoError(t, wallclock.Wait(t.Context(), time.Now().Add(-time.Hour)), "a time that has passed")
}

func TestWaitEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	require.ErrorIs(t, wallclock.Wait(ctx, time.Now().Add(time.Hour)), context.Canceled)
}
