package mounts

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// MountMountTmpfs mounts a new tmpfs on dir. It is never swapped to a disk, if the kernel supports that (Linux 6.4
// and later).
func MountTmpfs(mounter Mounter, dir string, options ...string) error {
	err := mounter.Mount("tmpfs", dir, "tmpfs", append(slices.Clone(options), "noswap"))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
		err = mounter.Mount("tmpfs", dir, "tmpfs", options)
	}
	return err
}
