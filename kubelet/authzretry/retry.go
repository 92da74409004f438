// Package authzretry retries requests that a node may send only on behalf of its Pods: for the objects that they refer
// to, and for their tokens. The node may learn of a Pod some milliseconds before the API server's authorizer does, and
// is refused until then; no event marks the end of that time.
package authzretry

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// maxRetries is the number of retries. The wait before the first is initialBackoff and doubles each time: about one
	// second in all.
	maxRetries     = 8
	initialBackoff = 4 * time.Millisecond
)

// Do calls get, and calls it again while it returns an error that a Pod bound just now may cause: at most nine times
// within about a second. A refusal after that is final: the caller reports it and retries at its own pace. If ctx ends,
// the last result is returned. get runs in the caller's goroutine.
func Do[T any](ctx context.Context, clock clock.Clock, get func(context.Context) (T, error)) (T, error) {
	for attempt := 0; ; attempt++ {
		result, err := get(ctx)
		if err == nil || attempt == maxRetries || !isTransient(err) {
			return result, err
		}
		if !wakeup.Sleep(ctx, clock, initialBackoff<<attempt) {
			return result, err
		}
	}
}

// isTransient reports whether the error may disappear within a moment: the authorizer forbids what it knows no reason
// for, and token admission returns "not found" for a Pod that its own watch has not received yet.
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
