package volume

import (
	"errors"
	"fmt"
)

// UnsupportedError says that a volume asks for something that Berth does not do. It is final: trying again does not
// help, so a Pod with it should be refused.
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

// Unsupported makes an UnsupportedError about a field of the volume's source. The field is given below the entry of
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

// noRoomError marks an error that says that a node has as many volumes of a driver as it can have.
type noRoomError struct{ err error }

func (e *noRoomError) Error() string { return e.err.Error() }
func (e *noRoomError) Unwrap() error { return e.err }

// NoRoom marks err as one that says that the node cannot have one more volume of the driver. The Pod should be refused,
// so that it finds another node. NoRoom(nil) is nil.
func NoRoom(err error) error {
	if err == nil {
		return nil
	}
	return &noRoomError{err: err}
}

// IsNoRoom reports whether err is, or wraps, an error marked by NoRoom.
func IsNoRoom(err error) bool {
	var noRoom *noRoomError
	return errors.As(err, &noRoom)
}

// infeasibleError marks an error that says that the same request would fail the same way each time.
type infeasibleError struct{ err error }

func (e *infeasibleError) Error() string { return e.err.Error() }
func (e *infeasibleError) Unwrap() error { return e.err }

// Infeasible marks err as one after which the same request makes no sense any more. Infeasible(nil) is nil.
func Infeasible(err error) error {
	if err == nil {
		return nil
	}
	return &infeasibleError{err: err}
}

// IsInfeasible reports whether err is, or wraps, an error marked by Infeasible.
func IsInfeasible(err error) bool {
	var infeasible *infeasibleError
	return errors.As(err, &infeasible)
}

// uncertainError marks an error after which the volume may be set up or not.
type uncertainError struct{ err error }

func (e *uncertainError) Error() string { return e.err.Error() }
func (e *uncertainError) Unwrap() error { return e.err }

// Uncertain marks err as one that leaves open whether the step took effect: a call that timed out, or whose answer
// was lost. Uncertain(nil) is nil.
func Uncertain(err error) error {
	if err == nil {
		return nil
	}
	return &uncertainError{err: err}
}

// IsUncertain reports whether err is, or wraps, an error marked by Uncertain.
func IsUncertain(err error) bool {
	var uncertain *uncertainError
	return errors.As(err, &uncertain)
}
