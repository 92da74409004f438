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
	"github.com/berth-dev/berth/up/supervisor"
)

// supervise runs a component until ctx is done. It restarts the component whenever it ends early, and reports that. It
// returns when ctx is done and the component has ended.
func supervise(ctx context.Context, clock clock.Clock, name string, report func(report string), run func(context.Context) error) {
	supervisor.Restart(ctx, clock, func() error {
		err := contain.Do("up.component", name, func() error { return run(ctx) })
		if ctx.Err() != nil && err != nil && !errors.Is(err, context.Canceled) && status.Code(err) != codes.Canceled {
			report(fmt.Sprintf("%s did not stop cleanly: %v", name, err))
		}
		return err
	}, func(err error, delay time.Duration) bool {
		report(fmt.Sprintf("%s exited: %v; restarting it in %v", name, err, delay))
		return true
	})
}
