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

// WaitWhile waits while state returns how much time of the clock is left to wait, and not after ctx has ended. It asks state again when
// that time has passed, and when the channel that state returns, that of a Broadcast, is closed.
func WaitWhile(ctx context.Context, c clock.Clock, state func() (changed <-chan struct{}, left time.Duration)) {
	for {
		changed, left := state()
		if left <= 0 || ctx.Err() != nil {
			return
		}
		timer := c.NewTimer(left)
		select {
		case <-changed:
		case <-timer.C():
		case <-ctx.Done():
		}
		timer.Stop()
	}
}
