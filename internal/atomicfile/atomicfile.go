// Package atomicfile replaces small files as a whole: a reader, or a crash, sees the old content or the new.
package atomicfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Write replaces the file, which only its owner may read, durably: once it returns the new content outlives a crash of
// the machine. A crash before may leave a file ".NAME.*" beside it.
func Write(path string, data []byte) error {
	if err := write(path, data, (*os.File).Sync); err != nil {
		return err
	}
	// The content is on the disk; its name is when the directory is.
	if err := syncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// WriteVolatile is Write for a file that is made anew at every start: it does not wait for the disk.
func WriteVolatile(path string, data []byte) error {
	return write(path, data, func(*os.File) error { return nil })
}

func write(path string, data []byte, settle func(*os.File) error) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".") // it is made with mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = file.Write(data)
	if err == nil {
		err = settle(file)
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(file.Name()))
	}
	return nil
}
