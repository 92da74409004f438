// Package atomicfile writes small private files so that a crash at any instant
// leaves either the old content or the new one, never a part. It is a copy of the
// root module's internal/atomicfile, which this module does not import.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// tempMark is part of the name of every file that is still being written.
const tempMark = ".berth-tmp-"

// Write replaces path with data, mode 0600: a temporary file beside it is
// written, synced and renamed, and the directory synced. The directory must exist.
// A directory at path is set aside.
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
	err = os.Rename(temp.Name(), path)
	if info, statErr := os.Lstat(path); err != nil && statErr == nil && info.IsDir() {
		SetAside(path, errors.New("it is a directory"), "the file is made anew in its place")
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return err
	}
	return syncDir(dir)
}

// maxAside bounds how many copies of one file are kept.
const maxAside = 99

// SetAside renames what is at path, whatever it is, to a name beside it that
// says that it is damaged, and logs that with the cause and with what follows
// from it. It replaces nothing. A path at which nothing is is fine.
func SetAside(path string, cause error, consequence string) {
	kept, err := aside(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case kept == "":
		klog.ErrorS(cause, "A state file is damaged and cannot be set aside", "file", path, "reason", err,
			"consequence", consequence)
	default:
		klog.ErrorS(cause, "Set aside a damaged state file", "file", path, "aside", kept, "consequence", consequence,
			"remedy", "restore the file from a backup and restart, or delete the one set aside")
	}
}

// AsideNames are the names that what was damaged at path may get, in their order: path.damaged, path.damaged-2, and so on.
func AsideNames(path string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for n := 1; n <= maxAside; n++ {
			name := path + ".damaged"
			if n > 1 {
				name += "-" + strconv.Itoa(n)
			}
			if !yield(name) {
				return
			}
		}
	}
}

// NoAsideError returns the error for a path with so many damaged ones already that no name is left.
func NoAsideError(path string) error {
	return fmt.Errorf("set aside %q: there are %d damaged ones already", path, maxAside)
}

// aside renames path to the first of its names that is free.
func aside(path string) (string, error) {
	for kept := range AsideNames(path) {
		err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, kept, unix.RENAME_NOREPLACE)
		if errors.Is(err, unix.EINVAL) { // the file system does not know the flag
			if _, statErr := os.Lstat(kept); statErr == nil {
				continue
			}
			err = os.Rename(path, kept)
		}
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("set aside %q: %w", path, err)
		}
		return kept, syncDir(filepath.Dir(path))
	}
	return "", NoAsideError(path)
}

// IsPassing reports whether a file could not be read for a reason that is not the file's and ends by itself: the process or the machine
// has no descriptors or no memory left. Whoever sets a file aside or makes it anew must not do that because of such an error.
func IsPassing(err error) bool {
	for _, passing := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EINTR, unix.EAGAIN} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// Read returns the content of a regular file of at most a mebibyte. It follows
// no symbolic link at path and does not block on a FIFO.
func Read(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSize {
		return nil, fmt.Errorf("%q is not a regular file of at most %d bytes", path, maxSize)
	}
	return io.ReadAll(io.LimitReader(file, maxSize))
}

// maxSize is the largest size of a file that Read reads.
const maxSize = 1 << 20

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
