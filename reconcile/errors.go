package reconcile

import "errors"

// terminalError marks an error that no retry can cure.
type terminalError struct{ cause error }

// Error returns the cause's text.
func (e *terminalError) Error() string {
	if e.cause == nil {
		return "terminal error"
	}
	return "terminal error: " + e.cause.Error()
}

// Unwrap returns the cause, for errors.Is and errors.As.
func (e *terminalError) Unwrap() error { return e.cause }

// Is implements errors.Is: errors.Is(err, TerminalError(nil)) is true for every terminal error.
func (e *terminalError) Is(target error) bool {
	var other *terminalError
	return errors.As(target, &other)
}

// TerminalError marks err as one that trying again cannot cure, such as an object whose spec is invalid. The
// request is not retried but counted, and comes back only with a new event. The mark survives wrapping with %w.
func TerminalError(err error) error { return &terminalError{cause: err} }

// IsTerminal reports whether err or an error that it wraps was made by TerminalError.
func IsTerminal(err error) bool {
	var terminal *terminalError
	return errors.As(err, &terminal)
}
