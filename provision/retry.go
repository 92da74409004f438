package provision

import "time"

// waitReason says what a claim or volume waits for before it is tried again.
type waitReason int

const (
	// waitNone: it may be tried now.
	waitNone waitReason = iota
	// waitBackoff: a backoff runs.
	waitBackoff
	// waitForChange: nobody else can help, or it was given up: a change or a resync.
	waitForChange
)

// retry is the one rule of when to try again. It is plain data; the owner guards it.
type retry struct {
	failures int
	waiting  waitReason
	until    time.Time
	// inputs is the fingerprint of what the last attempt was made with.
	inputs string
}

// due returns whether an attempt may be made now with these inputs. A change ends every hold, and if the
// retries were used up, they start over.
func (r *retry) due(now time.Time, inputs string, resync bool) bool {
	if r.waiting != waitNone && inputs != r.inputs {
		if r.waiting == waitForChange {
			r.failures = 0
		}
		return true
	}
	switch r.waiting {
	case waitBackoff:
		return !now.Before(r.until)
	case waitForChange:
		return resync
	default:
		return true
	}
}

// left is how much of a backoff is left; 0 if none runs.
func (r *retry) left(now time.Time) time.Duration {
	if r.waiting != waitBackoff {
		return 0
	}
	return max(0, r.until.Sub(now))
}

// start notes that an attempt is made with these inputs.
func (r *retry) start(inputs string) {
	r.waiting, r.inputs = waitNone, inputs
}

// reset ends a hold as other inputs do.
func (r *retry) reset() { r.inputs = "" }

// backOff holds until the delay is over.
func (r *retry) backOff(now time.Time, delay time.Duration) {
	r.waiting, r.until = waitBackoff, now.Add(delay)
}

// failed counts a failure and returns whether the retries are used up (threshold 0: they never are).
func (r *retry) failed(threshold int) (exhausted bool) {
	r.failures++
	if threshold > 0 && r.failures > threshold {
		r.failures = threshold // a resync allows exactly one more try
		r.waiting = waitForChange
		return true
	}
	return false
}

// park holds until a change or a resync.
func (r *retry) park() { r.waiting = waitForChange }

// succeeded forgets the failures.
func (r *retry) succeeded() { r.failures, r.waiting = 0, waitNone }
