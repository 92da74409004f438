package blockpin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Symlink creates a symbolic link, by which the owner of a pin records the volume in the Pod's directory. It reports
// whether there was a link before. A link to another target is replaced atomically: a process that is killed meanwhile
// leaves the old one or the new one.
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
	// No volume has such a name. A leftover is found and removed as a volume that is not mapped.
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
