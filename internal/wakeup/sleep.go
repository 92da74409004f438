package wakeup

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// Sleep waits for d of the clock's time and returns true, or returns false as soon as ctx ends. It is for pauses between
// attempts that nothing but ctx cuts short. No pause, d <= 0, needs no tick of the clock.
func Sleep(ctx context.Context, c clock.Clock, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}
