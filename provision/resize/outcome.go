package resize

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// outcome is what a failed call left behind.
type outcome int

const (
	// outcomeNotSent: nothing was asked of the driver, so nothing is known that was not known before.
	outcomeNotSent outcome = iota
	// outcomeUnknown: the volume may be growing.
	outcomeUnknown
	// outcomeFinal: the volume does not grow because of this call.
	outcomeFinal
	// outcomeInUse: final, and it may grow once nobody uses it.
	outcomeInUse
	// outcomeInfeasible: final, and the same request will never be granted.
	outcomeInfeasible
)

func (o outcome) isFinal() bool { return o >= outcomeFinal }

// outcomeOf reads off its status what a failed ControllerExpandVolume left behind, as CSI tells.
//
// ResourceExhausted is final here, unlike in external-resizer, where it may be of a limit on requests: a driver that
// works on an earlier call says Aborted, and a claim whose disk is full must be able to ask for less.
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
