package rotate

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// create makes an empty log.
func create(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make log: %w", err)
	}
	return file.Close()
}

// move moves the content of a log that a process appends to into the file rotated. What is written meanwhile stays in the log.
// On a file system that cannot remove the beginning of a file, what is written between the last read and the removal is lost.
func move(path, rotated string) (err error) {
	log, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return fmt.Errorf("measure log: %w", err)
	}
	out, err := os.OpenFile(rotated, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return fmt.Errorf("make file for the old content of log %q: %w", path, err)
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			err = errors.Join(err, os.Remove(rotated)) // the log still has the content
		}
	}()
	if collapsible := wholeBlocks(log, info.Size()); collapsible > 0 {
		if _, err := io.CopyN(out, log, collapsible); err != nil {
			return fmt.Errorf("copy log %q: %w", path, err)
		}
		if unix.Fallocate(int(log.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, collapsible) == nil {
			return nil
		}
	}
	if _, err := io.Copy(out, log); err != nil { // up to the end
		return fmt.Errorf("copy log %q: %w", path, err)
	}
	if err := log.Truncate(0); err != nil {
		return fmt.Errorf("empty log: %w", err)
	}
	return nil
}

// wholeBlocks returns how much of the beginning of a file the file system may be able to remove: whole blocks, and not all of
// the file.
func wholeBlocks(file *os.File, size int64) int64 {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &fs); err != nil || fs.Bsize <= 0 || size == 0 {
		return 0
	}
	return (size - 1) / fs.Bsize * fs.Bsize
}
