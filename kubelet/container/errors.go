package container

import (
	"errors"
)

// ReasonConfigError is the waiting reason of a container whose spec cannot be turned into a container here and now.
const ReasonConfigError = "CreateContainerConfigError"

// ConfigError is the failure to word a container for the runtime: something its spec refers to is missing, or the
// spec asks for what cannot be. The container waits with ReasonConfigError and the error's text, and is tried again.
type ConfigError struct {
	Err error
}

// NewConfigError wraps err, unless it is nil or wraps a ConfigError already.
func NewConfigError(err error) error {
	var already *ConfigError
	if err == nil || errors.As(err, &already) {
		return err
	}
	return &ConfigError{Err: err}
}

// Error is the text of the wrapped error: it is shown to the user as it is.
func (e *ConfigError) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *ConfigError) Unwrap() error { return e.Err }

var _ error = (*ConfigError)(nil)
