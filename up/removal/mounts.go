package removal

import (
	"errors"
	"fmt"
	"os"
	"sort"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// UnmountBelow unmounts everything mounted at or below dir, the deepest first. It continues after an error and returns all of
// them.
func UnmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	sort.Slice(mounts, func(i, j int) bool { return len(mounts[i].Mountpoint) > len(mounts[j].Mountpoint) })
	var errs []error
	for _, mount := range mounts {
		if mount.Mountpoint == dir {
			// The kubelet's root may be a mount of itself, made to share what is mounted below it.
			err = unix.Unmount(mount.Mountpoint, unix.MNT_DETACH)
		} else if err = unix.Unmount(mount.Mountpoint, 0); errors.Is(err, unix.EBUSY) {
			err = unix.Unmount(mount.Mountpoint, unix.MNT_DETACH)
		}
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", mount.Mountpoint, err))
		}
	}
	return errors.Join(errs...)
}

// Tree removes a directory with all below it, unless something is mounted there: it never deletes data behind a mount.
func Tree(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%s is still mounted, so %s is left in place", mounts[0].Mountpoint, dir)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}
