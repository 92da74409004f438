package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// claimPollInterval is the longest pause between two looks at a claim that may not be watched.
	claimPollInterval = time.Second
)

// retryWaiter waits between the attempts to set one volume up.
type retryWaiter struct {
	m      *Manager
	state  *podState
	claims watch.Interface // of the volume's claim, while that is what is missing
}

func (w *retryWaiter) stop() {
	if w.claims != nil {
		w.claims.Stop()
	}
}

// claimEvents is what tells of the claim, if something does beside the manager's own source, and the longest pause.
func (w *retryWaiter) claimEvents(ctx context.Context, claim *claimError, pause time.Duration) (<-chan watch.Event, time.Duration) {
	if w.m.deps.Claims != nil {
		return nil, pause
	}
	if w.claims == nil {
		w.claims = w.m.watchClaim(ctx, claim)
	}
	if w.claims == nil {
		return nil, min(pause, claimPollInterval)
	}
	return w.claims.ResultChan(), pause
}

// wait returns when it is worth trying again. Its error is that of ctx, or ErrTerminating.
func (w *retryWaiter) wait(ctx context.Context, changed <-chan struct{}, name string, cause error) error {
	pause := w.m.exec.RetryAfter(volumeKey(w.state.uid, name), opMount)
	var claim *claimError
	var events <-chan watch.Event
	var used *inUseError
	var freed <-chan struct{}
	if errors.As(cause, &used) {
		freed = used.freed
	}
	if errors.As(cause, &claim) {
		events, pause = w.claimEvents(ctx, claim, pause)
	}
	if pause <= 0 {
		return ctx.Err() // the pause went by while the failure was reported
	}
	timer := w.m.clock.NewTimer(pause)
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
