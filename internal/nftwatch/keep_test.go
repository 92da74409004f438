package nftwatch

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	testclock "k8s.io/utils/clock/testing"
)

// TestChecksArePeriodicWhenTheWatchHasEnded has watches that end in several ways, after the first pass.
func TestChecksArePeriodicWhenTheWatchHasEnded(t *testing.T) {
	for name, end := range map[string]func() error{
		"with an error": func() error { return context.DeadlineExceeded },
		"with a panic":  func() error { panic("for a test") },
	} {
		t.Run(name, func(t *testing.T) {
			clock := testclock.NewFakeClock(time.Now())
			ctx, cancel := context.WithCancel(t.Context())
			first, ended := make(chan struct{}), make(chan error)
			watch := func(context.Context, func(Change) bool, func(), func()) error {
				<-first
				return end()
			}
			var passes atomic.Int32
			go func() {
				ended <- Keep(ctx, Deps{Watch: watch, Clock: clock, Logger: slog.New(slog.DiscardHandler)}, Kept{
					Name: "the test's rules", Ensure: func(context.Context) error {
						if passes.Add(1) == 1 {
							close(first)
						}
						return nil
					},
				})
			}()
			for range 3 {
				require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
				before := passes.Load()
				clock.Step(checkPeriod)
				require.Eventually(t, func() bool { return passes.Load() > before }, time.Minute, time.Millisecond)
			}
			cancel()
			require.NoError(t, <-ended)
		})
	}
}
