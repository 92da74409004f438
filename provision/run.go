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
	gate := newBindGate(ctrl.settings.clock)
	events, stopEvents, err := ctrl.startEvents(ctx, gate)
	if err != nil {
		return fmt.Errorf("run provision controller %q: %w", ctrl.provisionerName, err)
	}
	defer stopEvents()
	if injector, ok := ctrl.provisioner.(EventRecorderInjector); ok {
		injector.InjectEventRecorder(events)
	}
	engine := ctrl.newEngine(events, gate)
	defer engine.informers.factory.Shutdown()
	defer cancel() // before Shutdown, which waits for the informers
	work := func(ctx context.Context) error {
		ctrl.running.Store(true)
		group, ctx := errgroup.WithContext(ctx)
		for _, runnable := range ctrl.settings.runnables {
			group.Go(func() error { return runnable(ctx) })
		}
		group.Go(func() error { return engine.run(ctx) })
		return group.Wait()
	}
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
