package rejection

import (
	"errors"
	"fmt"
)

// Reasons, as upstream's kubelet names them.
const (
	// Unexpected is a resource that cannot be given although the scheduler has counted it.
	Unexpected = "UnexpectedAdmissionError"
	// TopologyAffinity is a Pod whose resources are not on the NUMA nodes that the policy demands.
	TopologyAffinity = "TopologyAffinityError"
	// SMTAlignment is a number of CPUs that is not a number of whole cores.
	SMTAlignment = "SMTAlignmentError"
)

// Error is a failure to give a Pod its resources that no retry changes: the Pod fails with the reason.
type Error struct {
	Reason  string
	Message string
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// New returns an Error.
func New(reason, format string, args ...any) *Error {
	return &Error{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// From returns err as an Error. One that is none is unexpected.
func From(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return New(Unexpected, "Allocate failed due to %v, which is unexpected", err)
}
