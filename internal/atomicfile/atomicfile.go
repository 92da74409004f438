// Package atomicfile replaces small files as a whole: a reader, or a crash at any instant, sees the old content or the
// new, never a part.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tempMark is part of the name of every file that is still being written.
const tempMark = ".berth-tmp-"

// Write replaces the file durably: once it returns, the new content outlives a crash of the machine. The directory must
// exist. A crash during Write may leave a temporary file in the directory, which Clean removes.
func Write(path string, data []byte, perm fs.FileMode) error {
	if err := write(path, data, perm, (*os.File).Sync); err != nil {
		return err
	}
	// The file's content is on the disk now; its name is once the directory is.
	if err := SyncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// WriteVolatile is Write for a file that every start writes again: it does not wait for the disk.
func WriteVolatile(path string, data []byte, perm fs.FileMode) error {
	return write(path, data, perm, func(*os.File) error { return nil })
}

// SyncDir makes the names in a directory durable, after a rename for instance.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Clean removes what interrupted calls of Write left in the directory. Nothing may write there meanwhile.
func Clean(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("remove partly written files: %w", err)
	}
	for _, entry := range entries {
		if !strings.Contains(entry.Name(), tempMark) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove partly written file: %w", err)
		}
	}
	return nil
}

func write(path string, data []byte, perm fs.FileMode, sync func(*os.File) error) error {
	// The leading dot hides it from programs that read every file of a directory; its mode is 0600 at first.
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+tempMark)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Chmod(perm)
	}
	if err == nil {
		err = sync(file)
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(file.Name()))
	}
	return nil
}
