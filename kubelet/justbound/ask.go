// Package justbound asks the API server for what a node may have on behalf of its Pods alone: the objects that they
// refer to, and their tokens. The node may learn of a Pod some milliseconds before the API server's authorizer does,
// and is refused until then; nobody tells when that moment is over.
package justbound

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
)

const (
	// tries is how often is asked again, after firstPause doubling: for about a second in all.
	tries      = 8
	firstPause = 4 * time.Millisecond
)

// Ask calls get until its answer is another than one that a Pod which was bound just now may get, at most nine times
// and for a second. What is refused still then is refused for good: the caller tells it, and tries again at its own
// pace. If ctx ends, the last answer counts. get is called from the caller's goroutine.
func Ask[T any](ctx context.Context, clock clock.Clock, get func(context.Context) (T, error)) (T, error) {
	for try := 0; ; try++ {
		answer, err := get(ctx)
		if err == nil || try == tries || !tooEarly(err) {
			return answer, err
		}
		timer := clock.NewTimer(firstPause << try)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return answer, err
		}
	}
}

// tooEarly reports whether the answer may be another in a moment: the authorizer forbids what it knows no reason for,
// and the admission of tokens does not find a Pod that its own watch has not shown yet.
func tooEarly(err error) bool {
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
