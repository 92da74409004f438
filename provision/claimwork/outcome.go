package claimwork

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Outcome is what a failed try left behind.
type Outcome int

const (
	// NotSent: nothing was sent to the driver, so nothing has changed.
	NotSent Outcome = iota
	// Pending: nothing was sent, because an object does not exist.
	Pending
	// Unknown: the driver may be working on it.
	Unknown
	// Final: the driver does not work on it.
	Final
	// InUse: final, and it may succeed once the volume is not in use.
	InUse
	// Infeasible: final, and the same request cannot succeed.
	Infeasible
)

// IsFinal reports whether the driver was called, and is not working on it.
func (o Outcome) IsFinal() bool { return o >= Final }

// String returns the value of the metrics' label.
func (o Outcome) String() string {
	return [...]string{"unsent", "pending", "open", "final", "in_use", "infeasible"}[o]
}

// OutcomeOf returns what a failed call left behind, by the status codes of CSI. special has the codes of this call that are not
// Final.
func OutcomeOf(err error, special map[codes.Code]Outcome) Outcome {
	s, sent := status.FromError(err)
	if !sent {
		return NotSent
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted:
		return Unknown
	}
	if outcome, ok := special[s.Code()]; ok {
		return outcome
	}
	return Final
}

// Failure is the error of a try.
type Failure struct {
	error
	Outcome Outcome
	// Slow lengthens the delay before the next try.
	Slow bool
}

// Fail returns a Failure. What is infeasible, or waits for an object, is retried slowly.
func Fail(outcome Outcome, err error) *Failure {
	return &Failure{error: err, Outcome: outcome, Slow: outcome == Infeasible || outcome == Pending}
}

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.error }
