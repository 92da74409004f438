// Package authzretry asks the API server for what a node may have on behalf of its Pods alone: the objects that they
// refer to, and their tokens. The node may learn of a Pod some milliseconds before the API server's authorizer does,
// and is refused until then; nobody tells when that moment is over.
package authzretry

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
)

const (
	// maxRetries is how often is asked again, after initialBackoff doubling: for about a second in all.
	maxRetries     = 8
	initialBackoff = 4 * time.Millisecond
)

// Do calls get until its answer is another than one that a Pod which was bound just now may get, at most nine times
// and for a second. What is refused still then is refused for good: the caller tells it, and tries again at its own
// pace. If ctx ends, the last answer counts. get is called from the caller's goroutine.
func Do[T any](ctx context.Context, clock clock.Clock, get func(context.Context) (T, error)) (T, error) {
	for attempt := 0; ; attempt++ {
		result, err := get(ctx)
		if err == nil || attempt == maxRetries || !isTransient(err) {
			return result, err
		}
		timer := clock.NewTimer(initialBackoff << attempt)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return result, err
		}
	}
}

// isTransient reports whether the answer may be another in a moment: the authorizer forbids what it knows no reason for,
// and the admission of tokens does not find a Pod that its own watch has not shown yet.
func isTransient(err error) bool {
	if apierrors.IsForbidden(err) {
		return true
	}
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == "pods"
}
