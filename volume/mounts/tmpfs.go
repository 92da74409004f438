package mounts

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// MountTmpfs mounts a new tmpfs on dir that is never swapped to disk, where the kernel can promise that (Linux 6.4 and
// later), and otherwise an ordinary one.
func MountTmpfs(mounter Mounter, dir string, options ...string) error {
	err := mounter.Mount("tmpfs", dir, "tmpfs", append(slices.Clone(options), "noswap"))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
		err = mounter.Mount("tmpfs", dir, "tmpfs", options)
	}
	return err
}
