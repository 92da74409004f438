package up

import (
	"context"
	"errors"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/internal/wakeup"
)

// A request of a start that the API server does not answer is sent again, after a pause that doubles, for as long as answerLimit.
const answerLimit, minAnswerDelay, maxAnswerDelay = 2 * time.Minute, 100 * time.Millisecond, 5 * time.Second

// untilAnswered calls fn again while its error is that the API server did not answer: on a machine that is short of processors a start must
// not fail because one request took too long.
func (c *Cluster) untilAnswered(ctx context.Context, fn func(ctx context.Context) error) error {
	deadline := c.clock.Now().Add(answerLimit)
	for delay := minAnswerDelay; ; delay = min(2*delay, maxAnswerDelay) {
		err := fn(ctx)
		if err == nil || !isUnanswered(err) || c.clock.Now().After(deadline) {
			return err
		}
		c.logger.Warn("the API server did not answer a request of the start; sending it again", "error", err, "pause", delay)
		if !wakeup.Sleep(ctx, c.clock, delay) {
			return err
		}
	}
}

// isUnanswered reports whether a request did not reach the API server, or was not answered in time.
func isUnanswered(err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	return errors.As(err, new(*url.Error)) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err)
}
