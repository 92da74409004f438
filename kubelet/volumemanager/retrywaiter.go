package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/kubelet/volumemanager/devices"
)

// claimPollInterval is the longest wait between two reads of a claim that cannot be watched.
const claimPollInterval = time.Second

// retryWaiter waits between the attempts to set up one volume.
type retryWaiter struct {
	m      *Manager
	state  *podState
	claims watch.Interface // of the volume's claim, while the volume waits for it
}

func (w *retryWaiter) stop() {
	if w.claims != nil {
		w.claims.Stop()
	}
}

// claimEvents returns the events of the claim, nil if the Manager's ClaimSource reports them or the claim cannot be
// watched, and the longest wait.
func (w *retryWaiter) claimEvents(
	ctx context.Context, claim *claimError, backoff time.Duration,
) (<-chan watch.Event, time.Duration) {
	if w.m.deps.Claims != nil {
		return nil, backoff
	}
	if w.claims == nil {
		w.claims = w.m.watchClaim(ctx, claim)
	}
	if w.claims == nil {
		return nil, min(backoff, claimPollInterval)
	}
	return w.claims.ResultChan(), backoff
}

// wait blocks until the next attempt should be made: after the backoff, or when something changed. It returns the error
// of ctx, or ErrTerminating.
func (w *retryWaiter) wait(ctx context.Context, changed <-chan struct{}, name string, cause error) error {
	backoff := w.m.operations.RetryAfter(volumeKey(w.state.uid, name), opMount)
	var freed <-chan struct{}
	if inUse := (*devices.InUseError)(nil); errors.As(cause, &inUse) {
		freed = inUse.Freed
	}
	if conflict := (*devices.LabelConflictError)(nil); errors.As(cause, &conflict) {
		freed = conflict.Freed
	}
	var claim *claimError
	var events <-chan watch.Event
	if errors.As(cause, &claim) {
		events, backoff = w.claimEvents(ctx, claim, backoff)
	}
	if backoff <= 0 {
		return ctx.Err() // the backoff ended while the failure was reported
	}
	timer := w.m.clock.NewTimer(backoff)
	defer timer.Stop()
	for {
		select {
		case <-changed:
			return nil
		case <-freed:
			return nil
		case <-timer.C():
			return nil
		case <-ctx.Done():
			return fmt.Errorf("%w; last failure: %w", ctx.Err(), cause)
		case <-w.state.closing:
			return ErrTerminating
		case event, ok := <-events:
			if !ok {
				w.claims.Stop()
				w.claims, events = nil, nil // opened again after the next attempt
				continue
			}
			if object, ok := event.Object.(metav1.Object); ok && object.GetName() == claim.name {
				return nil
			}
		}
	}
}
