package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// replaceFile replaces the file that a user has named by what write writes, if that succeeds, and leaves it as it is otherwise. What is
// no regular file, such as /dev/stdout, is never replaced: write writes to it.
func replaceFile(path string, write func(w io.Writer) error) error {
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return usageError{fmt.Errorf("--output %s: it is a directory: name a file", path)}
	case err == nil && !info.Mode().IsRegular():
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return fmt.Errorf("write to --output: %w", err)
		}
		return errors.Join(write(file), file.Close())
	case err == nil:
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return fmt.Errorf("find the file of --output: %w", err)
		}
	}
	return replaceRegular(path, write)
}

// replaceRegular replaces a regular file, or makes it.
func replaceRegular(path string, write func(w io.Writer) error) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	if err := errors.Join(write(file), file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
