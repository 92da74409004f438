package supervisor

import (
	"context"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// minRestartDelay and maxRestartDelay bound the delay before a program or component is started again. It doubles with each
	// start, and is reset once the program has run for resetDelayAfter.
	minRestartDelay = 250 * time.Millisecond
	maxRestartDelay = 15 * time.Second
	resetDelayAfter = 30 * time.Second
)

// Restart calls run until ctx is done, and again after a growing delay whenever it ends early. ended gets the error of each
// early end and the delay; it returns false to end Restart.
func Restart(ctx context.Context, source clock.Clock, run func() error, ended func(err error, delay time.Duration) bool) {
	delay := minRestartDelay
	for {
		began := source.Now()
		err := run()
		if ctx.Err() != nil {
			return
		}
		if source.Since(began) >= resetDelayAfter {
			delay = minRestartDelay
		}
		if !ended(err, delay) || !wakeup.Sleep(ctx, source, delay) {
			return
		}
		delay = min(2*delay, maxRestartDelay)
	}
}
