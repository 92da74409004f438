package provision

import "time"

// hold says what a claim or volume waits for before it is tried again.
type hold int

const (
	// holdNothing: it may be tried now.
	holdNothing hold = iota
	// holdUntil: a backoff runs.
	holdUntil
	// holdForChange: nobody else can help, or it was given up: a change or a resync.
	holdForChange
)

// retry is the one rule of when to try again. It is plain data; the owner guards it.
type retry struct {
	failures int
	hold     hold
	until    time.Time
	// seen is the fingerprint of what the last attempt was made with.
	seen string
}

// due returns whether an attempt may be made now with these inputs. A change ends every hold, and if the
// retries were used up, they start over.
func (r *retry) due(now time.Time, inputs string, resync bool) bool {
	if r.hold != holdNothing && inputs != r.seen {
		if r.hold == holdForChange {
			r.failures = 0
		}
		return true
	}
	switch r.hold {
	case holdUntil:
		return !now.Before(r.until)
	case holdForChange:
		return resync
	default:
		return true
	}
}

// left is how much of a backoff is left; 0 if none runs.
func (r *retry) left(now time.Time) time.Duration {
	if r.hold != holdUntil {
		return 0
	}
	return max(0, r.until.Sub(now))
}

// begin notes that an attempt is made with these inputs.
func (r *retry) begin(inputs string) {
	r.hold, r.seen = holdNothing, inputs
}

// change ends a hold as other inputs do.
func (r *retry) change() { r.seen = "" }

// wait holds until the delay is over.
func (r *retry) wait(now time.Time, delay time.Duration) {
	r.hold, r.until = holdUntil, now.Add(delay)
}

// failed counts a failure and returns whether the retries are used up (threshold 0: they never are).
func (r *retry) failed(threshold int) (exhausted bool) {
	r.failures++
	if threshold > 0 && r.failures > threshold {
		r.failures = threshold // a resync allows exactly one more try
		r.hold = holdForChange
		return true
	}
	return false
}

// stop holds until a change or a resync.
func (r *retry) stop() { r.hold = holdForChange }

// succeeded forgets the failures.
func (r *retry) succeeded() { r.failures, r.hold = 0, holdNothing }
