// Package filecopy copies files: by sharing their blocks where the filesystem can (reflinks), else only the data between the
// holes.
package filecopy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// chunk is how many bytes are copied between two checks whether to stop.
const chunk = 8 << 20

// Reflink makes dst share the blocks of src, at one moment in time. It reports false if the filesystem cannot.
func Reflink(dst, src *os.File) (bool, error) {
	err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL),
		errors.Is(err, unix.ENOTTY), errors.Is(err, unix.ENOSYS):
		return false, nil
	}
	return false, fmt.Errorf("reflink: %w", err)
}

// Sparse copies what src holds into the empty dst and leaves its holes as holes.
func Sparse(ctx context.Context, dst, src *os.File) error {
	info, err := src.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if err := dst.Truncate(size); err != nil {
		return err
	}
	for offset := int64(0); offset < size; {
		start, err := unix.Seek(int(src.Fd()), offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return fmt.Errorf("find data: %w", err)
		}
		end, err := unix.Seek(int(src.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("find a hole: %w", err)
		}
		end = min(end, size)
		if err := copyRange(ctx, dst, src, start, end); err != nil {
			return err
		}
		offset = end
	}
	return nil
}

func copyRange(ctx context.Context, dst, src *os.File, start, end int64) error {
	for start < end {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(end-start, chunk)
		if _, err := dst.Seek(start, io.SeekStart); err != nil {
			return err
		}
		// io.CopyN has the kernel copy between files (copy_file_range), where it can.
		if _, err := src.Seek(start, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.CopyN(dst, src, n); err != nil {
			return err
		}
		start += n
	}
	return nil
}
