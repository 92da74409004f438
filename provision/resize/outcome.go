package resize

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// outcome is what a failed call left behind.
type outcome int

const (
	// outcomeNotSent: nothing was sent to the driver, so nothing has changed.
	outcomeNotSent outcome = iota
	// outcomeUnknown: the volume may be expanding.
	outcomeUnknown
	// outcomeFinal: the call does not expand the volume.
	outcomeFinal
	// outcomeInUse: final, and it may succeed once the volume is not in use.
	outcomeInUse
	// outcomeInfeasible: final, and the same request cannot succeed.
	outcomeInfeasible
)

func (o outcome) isFinal() bool { return o >= outcomeFinal }

// outcomeOf returns what a failed ControllerExpandVolume left behind, by the status codes of CSI.
//
// ResourceExhausted is final, unlike in external-resizer, where it may come from a limit on requests: a driver that works on
// an earlier call returns Aborted, and a claim whose disk is full must be able to request less.
func outcomeOf(err error) outcome {
	s, sent := status.FromError(err)
	if !sent {
		return outcomeNotSent
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted:
		return outcomeUnknown
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		return outcomeInfeasible
	case codes.FailedPrecondition:
		return outcomeInUse
	}
	return outcomeFinal
}
