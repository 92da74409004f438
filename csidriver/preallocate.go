package csidriver

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// preallocate allocates the blocks of an image up to size, which becomes its size if it is smaller. With shared, blocks of
// other images that it has are copied.
func (s *store) preallocate(image *os.File, size int64, shared bool) error {
	var stat unix.Statfs_t
	if err := unix.Fstatfs(int(image.Fd()), &stat); err != nil {
		return fmt.Errorf("preallocate image: %w", err)
	}
	if copiesOnWrite(stat.Type) {
		return status.Errorf(codes.FailedPrecondition, "parameters: %s: the file system of %q writes to new blocks, allocated or not: "+
			"use one that overwrites, such as ext4 or xfs", ParameterPreallocate, s.root)
	}
	mode := uint32(0)
	if shared {
		mode = unix.FALLOC_FL_UNSHARE_RANGE
	}
	for {
		err := unix.Fallocate(int(image.Fd()), mode, 0, size)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EOPNOTSUPP):
			return status.Errorf(codes.FailedPrecondition, "parameters: %s: the file system of %q cannot allocate blocks ahead: "+
				"use ext4 or xfs", ParameterPreallocate, s.root)
		case errors.Is(err, unix.ENOSPC):
			return fmt.Errorf("%w: allocate %s: %w", errNoSpace, bytesText(size), err)
		default:
			return fmt.Errorf("preallocate image: %w", err)
		}
	}
}

// copiesOnWrite reports whether a file system of that type writes data to new blocks always.
func copiesOnWrite(fsType int64) bool {
	const zfs, bcachefs = 0x2fc12fc1, 0xca451a4e
	switch fsType {
	case unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.NILFS_SUPER_MAGIC, zfs, bcachefs:
		return true
	}
	return false
}
