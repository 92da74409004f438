package volume

import (
	"errors"
	"fmt"
)

// UnsupportedError means that a volume requires something that Berth does not support. It is final: a retry does not
// help, so the Pod should be rejected.
type UnsupportedError struct {
	// Field is the path of the field in the Pod (or the PersistentVolume), such as
	// "spec.volumes[cache].emptyDir.medium".
	Field string
	// Reason says what is not supported, and what can be done instead.
	Reason string
}

// Error implements error.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("unsupported field %s: %s", e.Field, e.Reason)
}

// Unsupported returns an UnsupportedError about a field of the volume's source. The field is given below the entry of
// spec.volumes, or below the PersistentVolume's spec if the volume has one.
func Unsupported(spec Spec, field, reason string) error {
	if spec.PV != nil {
		return &UnsupportedError{Field: fmt.Sprintf("PersistentVolume[%s].spec.%s", spec.PV.Name, field), Reason: reason}
	}
	return &UnsupportedError{Field: fmt.Sprintf("spec.volumes[%s].%s", spec.Name, field), Reason: reason}
}

// IsUnsupported reports whether err is, or wraps, an UnsupportedError.
func IsUnsupported(err error) bool {
	var unsupported *UnsupportedError
	return errors.As(err, &unsupported)
}

// marked is an error of a kind; the kind is not part of its text.
type marked[kind any] struct{ err error }

func (e *marked[kind]) Error() string { return e.err.Error() }
func (e *marked[kind]) Unwrap() error { return e.err }

// mark marks err as one of that kind; nil stays nil.
func mark[kind any](err error) error {
	if err == nil {
		return nil
	}
	return &marked[kind]{err: err}
}

// isMarked reports whether err is, or wraps, an error of that kind.
func isMarked[kind any](err error) bool {
	var found *marked[kind]
	return errors.As(err, &found)
}

// The kinds of marked errors.
type (
	attachLimitExceeded struct{}
	infeasible          struct{}
	uncertain           struct{}
)

// AttachLimitExceeded marks err as one that means that the node cannot have one more volume of the driver. The Pod
// should be rejected, so that it can run on another node. AttachLimitExceeded(nil) is nil.
func AttachLimitExceeded(err error) error { return mark[attachLimitExceeded](err) }

// IsAttachLimitExceeded reports whether err is, or wraps, an error marked by AttachLimitExceeded.
func IsAttachLimitExceeded(err error) bool { return isMarked[attachLimitExceeded](err) }

// Infeasible marks err as one after which the same request cannot succeed any more. Infeasible(nil) is nil.
func Infeasible(err error) error { return mark[infeasible](err) }

// IsInfeasible reports whether err is, or wraps, an error marked by Infeasible.
func IsInfeasible(err error) bool { return isMarked[infeasible](err) }

// Uncertain marks err as one after which it is unknown whether the step took effect: a call that timed out, or whose
// response was lost. Uncertain(nil) is nil.
func Uncertain(err error) error { return mark[uncertain](err) }

// IsUncertain reports whether err is, or wraps, an error marked by Uncertain.
func IsUncertain(err error) bool { return isMarked[uncertain](err) }
