// Package io has the Writer of the 1.4 API, which writes whole files.
package io

import (
	"fmt"
	"os"
)

// Writer writes whole files.
type Writer interface {
	// WriteFile creates the file, or replaces its content.
	WriteFile(filename string, data []byte, perm os.FileMode) error
}

// StdWriter is the Writer of this machine's file system.
type StdWriter struct{}

var _ Writer = (*StdWriter)(nil)

// WriteFile implements Writer.
func (*StdWriter) WriteFile(filename string, data []byte, perm os.FileMode) error {
	if err := os.WriteFile(filename, data, perm); err != nil {
		return fmt.Errorf("write file %q: %w", filename, err)
	}
	return nil
}
