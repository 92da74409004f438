package removal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// LostAndFound is the directory that the tools of ext4 make in each file system: a data directory may be one of its own.
const LostAndFound = "lost+found"

// UnmountBelow unmounts everything mounted below dir, the deepest first, and dir where it is a mount of itself, made to share what is mounted
// below it. Another mount of dir, as of a disk for it, is its user's and stays. It continues after an error and returns all of them.
func UnmountBelow(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	above, err := mountinfo.GetMounts(mountinfo.ParentsFilter(filepath.Dir(dir)))
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	sort.Slice(mounts, func(i, j int) bool { return len(mounts[i].Mountpoint) > len(mounts[j].Mountpoint) })
	var errs []error
	for _, mount := range mounts {
		if mount.Mountpoint == dir {
			if !isOfItself(mount, above) {
				continue
			}
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

// isOfItself reports whether a mount shows the directory that it is on. above are the mounts of the directories above it.
func isOfItself(mount *mountinfo.Info, above []*mountinfo.Info) bool {
	var parent *mountinfo.Info
	for _, one := range above {
		if parent == nil || len(one.Mountpoint) >= len(parent.Mountpoint) { // of two at one place the later one is on top
			parent = one
		}
	}
	if parent == nil || parent.Major != mount.Major || parent.Minor != mount.Minor {
		return false
	}
	within, err := filepath.Rel(parent.Mountpoint, mount.Mountpoint)
	return err == nil && filepath.Join(parent.Root, within) == mount.Root
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
