package provision

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/controller/leader"
	"github.com/berth-dev/berth/internal/contain"
)

// ErrLeaseLost is returned by RunContext if another process took the Lease, or if it could not be renewed.
var ErrLeaseLost = leader.ErrLost

// RunContext runs the controller until the context ends. Then it begins no new call, finishes the calls in flight, saves
// the volumes that they return, releases the Lease and returns nil. It ends in the same way, with ErrLeaseLost, if it loses
// the Lease. A controller runs once.
func (ctrl *ProvisionController) RunContext(ctx context.Context) error {
	if !ctrl.started.CompareAndSwap(false, true) {
		return fmt.Errorf("run provision controller %q: it has run already", ctrl.provisionerName)
	}
	ctx, cancel := context.WithCancel(ctx)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel()
	helpers.Go(contain.Guard("provision.RunContext", "", func() { ctrl.serveMetrics(ctx) }))

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
			group.Go(contain.Func("provision.RunContext", "", func() error { return runnable(ctx) }))
		}
		group.Go(contain.Func("provision.RunContext", "", func() error { return engine.run(ctx) }))
		return group.Wait()
	}
	if ctrl.settings.leaderElection {
		err = ctrl.runElected(ctx, work)
	} else {
		err = work(ctx)
	}
	if err != nil {
		return fmt.Errorf("run provision controller %q: %w", ctrl.provisionerName, err)
	}
	return nil
}

// runElected works while it holds the Lease. The Lease is kept until the work has ended, so that the next leader never
// meets calls of this one.
func (ctrl *ProvisionController) runElected(ctx context.Context, work func(context.Context) error) error {
	s := &ctrl.settings
	client := s.leaseClient
	if client == nil {
		client = unthrottled(ctrl.client) // requests of the controller must not delay those that renew the Lease
	}
	elector, err := leader.New(leader.Deps{
		Client: client.CoordinationV1(), Logger: s.logger.With("provisioner", ctrl.provisionerName), Registerer: s.registerer,
	}, leader.Config{
		Namespace: s.leaderNamespace, Name: leaseName(ctrl.provisionerName), Identity: ctrl.identity,
		LeaseDuration: s.leaseDuration, RenewDeadline: s.renewDeadline, RetryPeriod: s.retryPeriod,
	})
	if err != nil {
		return err
	}
	ctrl.elector.Store(elector)
	return elector.Run(ctx, work)
}
