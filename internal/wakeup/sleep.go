package wakeup

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// Sleep waits for d of the clock's time and returns true, or returns false as soon as ctx ends. It is for pauses between
// attempts that nothing but ctx cuts short.
func Sleep(ctx context.Context, c clock.Clock, d time.Duration) bool {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}
