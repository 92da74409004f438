package up

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
)

const (
	// firstRestart and lastRestart bound the wait before a part that died is started again. It doubles while the
	// part keeps dying and starts over once it has lived for steadyAfter.
	firstRestart = 250 * time.Millisecond
	lastRestart  = 15 * time.Second
	steadyAfter  = 30 * time.Second
)

// supervise runs a part for as long as ctx lives, starting it again whenever it ends before, and reports each
// such end. It returns when ctx has ended and the part with it.
func supervise(ctx context.Context, clk clock.Clock, name string, report func(note string), run func(context.Context) error) {
	wait := firstRestart
	for {
		began := clk.Now()
		err := guard(ctx, run)
		if ctx.Err() != nil {
			if err != nil && !errors.Is(err, context.Canceled) && status.Code(err) != codes.Canceled {
				report(fmt.Sprintf("%s did not stop cleanly: %v", name, err))
			}
			return
		}
		if clk.Since(began) >= steadyAfter {
			wait = firstRestart
		}
		report(fmt.Sprintf("%s died: %v; starting it again in %v", name, err, wait))
		timer := clk.NewTimer(wait)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
		wait = min(2*wait, lastRestart)
	}
}

// guard turns a panic of one part into its error, so that the other parts live on.
func guard(ctx context.Context, run func(context.Context) error) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("panic: %v", reason)
		}
	}()
	return run(ctx)
}
