package provision

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
)

// RunContext runs the controller and blocks until the context ends: then no new call is begun, the ones in
// flight are finished and what they return is saved, the lease is released, and nil is returned. Losing the
// lease ends it the same way, with ErrLeaseLost. A controller runs once.
func (ctrl *ProvisionController) RunContext(ctx context.Context) error {
	if !ctrl.started.CompareAndSwap(false, true) {
		return fmt.Errorf("run provision controller %q: it has run already", ctrl.provisionerName)
	}
	ctx, cancel := context.WithCancel(ctx)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel()
	helpers.Go(func() { ctrl.serveMetrics(ctx) })

	// Events outlive ctx: those of the calls in flight are still to be written.
	rush := newBindGate(ctrl.settings.clock)
	events, endEvents := ctrl.startEvents(context.WithoutCancel(ctx), rush)
	defer endEvents()
	if user, ok := ctrl.provisioner.(EventRecorderInjector); ok {
		user.InjectEventRecorder(events)
	}
	engine := ctrl.newEngine(events, rush)
	defer engine.factory.Shutdown()
	defer cancel() // before Shutdown, which waits for the informers
	work := func(ctx context.Context) error {
		ctrl.running.Store(true)
		group, ctx := errgroup.WithContext(ctx)
		for _, companion := range ctrl.settings.runnables {
			group.Go(func() error { return companion(ctx) })
		}
		group.Go(func() error { return engine.run(ctx) })
		return group.Wait()
	}
	var err error
	if ctrl.settings.leaderElection {
		err = ctrl.lead(ctx, work)
	} else {
		err = work(ctx)
	}
	if err != nil {
		return fmt.Errorf("run provision controller %q: %w", ctrl.provisionerName, err)
	}
	return nil
}
