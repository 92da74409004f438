package provision

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/contain"
)

// startNotifiers starts what the provisioner observes for the controller, until ctx ends.
func (e *engine) startNotifiers(ctx context.Context, running *sync.WaitGroup) {
	start := func(what string, observe func(context.Context) error) {
		running.Go(contain.Guard("provision.notifiers", "", func() {
			if err := observe(ctx); err != nil && ctx.Err() == nil {
				e.logger.Warn("provisioner does not notify any more; what failed is retried after its backoff", "of", what, "error", err)
			}
		}))
	}
	if notifier, ok := e.provisioner.(DeletionNotifier); ok {
		start("deletable volumes", func(ctx context.Context) error { return notifier.NotifyDeletable(ctx, e.notifyDeletable) })
	}
	if notifier, ok := e.provisioner.(ClaimNotifier); ok {
		start("claims", func(ctx context.Context) error { return notifier.NotifyProvisionable(ctx, e.notifyProvisionable) })
	}
}

// notifyDeletable retries a deletion that failed.
func (e *engine) notifyDeletable(name string) {
	if e.deletions.notify(name) {
		e.queues.volumes.Add(name)
	}
}

// notifyProvisionable retries a claim that failed, or whose call fails now.
func (e *engine) notifyProvisionable(uid types.UID) {
	if st := e.states.get(uid); st != nil {
		st.notified.Store(true)
		e.queues.claims.Add(string(uid))
	}
}

// retryAll retries all claims and volumes that have failed.
func (e *engine) retryAll() {
	for _, uid := range e.states.all() {
		e.notifyProvisionable(uid)
	}
	for _, name := range e.deletions.all() {
		e.notifyDeletable(name)
	}
}
