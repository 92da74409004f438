// Package atomicfile writes small private files so that a crash at any instant
// leaves either the old content or the new one, never a part. It is a copy of the
// root module's internal/atomicfile, which this module does not import.
package atomicfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// tempMark is part of the name of every file that is still being written.
const tempMark = ".berth-tmp-"

// Write replaces path with data, mode 0600: a temporary file beside it is
// written, synced and renamed, and the directory synced. The directory must exist.
func Write(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	temp, err := os.CreateTemp(dir, filepath.Base(path)+tempMark+"*") // mode 0600
	if err != nil {
		return fmt.Errorf("write %q: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write %q: %w", path, err), ignoreMissing(os.Remove(temp.Name())))
		}
	}()
	if _, err = temp.Write(data); err != nil {
		return errors.Join(err, temp.Close())
	}
	if err = temp.Sync(); err != nil {
		return errors.Join(err, temp.Close())
	}
	if err = temp.Close(); err != nil {
		return err
	}
	if err = os.Rename(temp.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

// Dir creates path and its parents if missing and sets the mode of path to 0700.
func Dir(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("create directory %q: %w", path, err)
	}
	if err := os.Chmod(path, 0o700); err != nil {
		return fmt.Errorf("set mode of directory %q: %w", path, err)
	}
	return nil
}

// Clean removes what interrupted calls of Write left in dir.
func Clean(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read directory %q: %w", dir, err)
	}
	for _, entry := range entries {
		if !strings.Contains(entry.Name(), tempMark) {
			continue
		}
		if err := ignoreMissing(os.Remove(filepath.Join(dir, entry.Name()))); err != nil {
			return fmt.Errorf("remove partly written file: %w", err)
		}
	}
	return nil
}

func syncDir(dir string) error {
	handle, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(handle.Sync(), handle.Close())
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
