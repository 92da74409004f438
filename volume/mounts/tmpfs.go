package mounts

import "slices"

// MountTmpfs mounts a new tmpfs on dir. It is never swapped to a disk, if the kernel supports that (Linux 6.4
// and later).
func MountTmpfs(mounter Mounter, dir string, options ...string) error {
	if mounter.Mount("tmpfs", dir, "tmpfs", append(slices.Clone(options), "noswap")) == nil {
		return nil
	}
	return mounter.Mount("tmpfs", dir, "tmpfs", options) // whose error does not depend on the kernel's version
}
