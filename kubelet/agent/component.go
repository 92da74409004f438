package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-dev/berth/internal/contain"
)

// component is one row of the start table.
type component struct {
	name  string
	start func(ctx context.Context) error
	// needsAPI leaves the component out where there is no API server.
	needsAPI bool
}

// runComponents starts the components in order and stops them in reverse order, each after those behind it have returned,
// when ctx ends or one of them fails. A component that returns nil has finished its work.
func runComponents(ctx context.Context, components []component) error {
	type running struct {
		cancel context.CancelFunc
		ended  chan error
	}
	all := make([]running, 0, len(components))
	failed := make(chan struct{}, len(components))
	for _, c := range components {
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		r := running{cancel, make(chan error, 1)}
		go func() {
			err := contain.Do("agent.component", c.name, func() error { return c.start(own) })
			if err != nil && own.Err() == nil && ctx.Err() == nil {
				err = fmt.Errorf("%s: %w", c.name, err)
				failed <- struct{}{}
			} else {
				err = nil
			}
			r.ended <- err
		}()
		all = append(all, r)
	}
	select {
	case <-ctx.Done():
	case <-failed:
	}
	var errs []error
	for i := len(all) - 1; i >= 0; i-- {
		all[i].cancel()
		errs = append(errs, <-all[i].ended)
	}
	return errors.Join(errs...)
}
