package up

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// minRestartDelay and maxRestartDelay bound the delay before a component is restarted. It doubles with each restart,
	// and is reset once the component has run for resetDelayAfter.
	minRestartDelay = 250 * time.Millisecond
	maxRestartDelay = 15 * time.Second
	resetDelayAfter = 30 * time.Second
)

// supervise runs a component until ctx is done. It restarts the component whenever it ends early, and reports that. It
// returns when ctx is done and the component has ended.
func supervise(ctx context.Context, clock clock.Clock, name string, report func(report string), run func(context.Context) error) {
	wait := minRestartDelay
	for {
		began := clock.Now()
		err := contain.Do("up.component", name, func() error { return run(ctx) })
		if ctx.Err() != nil {
			if err != nil && !errors.Is(err, context.Canceled) && status.Code(err) != codes.Canceled {
				report(fmt.Sprintf("%s did not stop cleanly: %v", name, err))
			}
			return
		}
		if clock.Since(began) >= resetDelayAfter {
			wait = minRestartDelay
		}
		report(fmt.Sprintf("%s exited: %v; restarting it in %v", name, err, wait))
		if !wakeup.Sleep(ctx, clock, wait) {
			return
		}
		wait = min(2*wait, maxRestartDelay)
	}
}
