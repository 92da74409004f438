package provision

import "time"

// waitReason is what a claim or volume waits for before it is tried again.
type waitReason int

const (
	// waitNone: it may be tried now.
	waitNone waitReason = iota
	// waitBackoff: a backoff runs.
	waitBackoff
	// waitForChange: it was given up, or another try cannot help: it waits for a change or a resync.
	waitForChange
)

// retry decides when to try again. It is plain data, guarded by its owner.
type retry struct {
	failures int
	waiting  waitReason
	until    time.Time
	// inputs is the fingerprint of what the last try depended on.
	inputs string
}

// readiness returns whether a try may be made now with these inputs. A change of the inputs ends every wait, and makes the
// retries start over if they were used up.
func (r *retry) readiness(now time.Time, inputs string, resync bool) readiness {
	if r.waiting != waitNone && inputs != r.inputs {
		if r.waiting == waitForChange {
			r.failures = 0
		}
		return readyNow
	}
	switch {
	case r.waiting == waitBackoff && now.Before(r.until):
		return readyLater
	case r.waiting == waitForChange && !resync:
		return readyOnChange
	}
	return readyNow
}

// left returns how much of a backoff is left; 0 if none runs.
func (r *retry) left(now time.Time) time.Duration {
	if r.waiting != waitBackoff {
		return 0
	}
	return max(0, r.until.Sub(now))
}

// start records that a try is made with these inputs.
func (r *retry) start(inputs string) {
	r.waiting, r.inputs = waitNone, inputs
}

// reset ends a wait as a change of the inputs does.
func (r *retry) reset() { r.inputs = "" }

// backOff waits for the delay.
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

// park waits for a change or a resync.
func (r *retry) park() { r.waiting = waitForChange }

// succeeded forgets the failures.
func (r *retry) succeeded() { r.failures, r.waiting = 0, waitNone }
