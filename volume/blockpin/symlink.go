package blockpin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Symlink makes the path a symbolic link, the trace that a volume's owner leaves in the Pod's directory. It reports whether
// there was a link before. One that leads elsewhere is replaced in one step: a process that is killed meanwhile leaves
// the old one or the new one.
func Symlink(to, path string) (before bool, err error) {
	have, err := os.Readlink(path)
	if err == nil && have == to {
		return true, nil
	}
	before = err == nil
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return before, err
	}
	if !before {
		return false, os.Symlink(to, path)
	}
	// No volume has such a name. What is left of it is found and taken down as one that nobody has mapped.
	temporary := path + "~new"
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return true, err
	}
	if err := os.Symlink(to, temporary); err != nil {
		return true, err
	}
	if err := os.Rename(temporary, path); err != nil {
		return true, fmt.Errorf("replace link: %w", err)
	}
	return true, nil
}
