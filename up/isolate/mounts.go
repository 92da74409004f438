package isolate

import (
	"errors"
	"fmt"
	"os"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// cniCache is where the CNI library remembers Pods, on the host's file system. It has no setting for that.
const cniCache = "/var/lib/cni"

// prepareMounts makes the mounts of this mount namespace its own: what the machine mounts later appears here, and nothing that
// is mounted here appears on the machine. /proc and /sys show this process' namespaces.
func prepareMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep the cluster's mounts from the machine: %w", err)
	}
	for fstype, target := range map[string]string{"proc": "/proc", "sysfs": "/sys"} {
		if err := remount(fstype, target); err != nil {
			return fmt.Errorf("mount %s for the cluster's namespaces: %w", target, err)
		}
	}
	if err := os.MkdirAll(cniCache, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", cniCache, err)
	}
	for _, mount := range []struct{ fstype, target, options string }{
		{"tmpfs", "/dev/shm", "mode=1777"}, {"mqueue", "/dev/mqueue", ""}, {"tmpfs", cniCache, "mode=755"},
	} {
		err := unix.Mount(mount.fstype, mount.target, mount.fstype, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, mount.options)
		if err != nil && !errors.Is(err, unix.ENOENT) { // a machine may have no /dev/mqueue
			return fmt.Errorf("mount %s for the cluster's namespaces: %w", mount.target, err)
		}
	}
	// Pods may share mounts with each other (mountPropagation), as on a machine with systemd.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("let Pods share mounts: %w", err)
	}
	return nil
}

// remount mounts a new file system over target, and in it what was mounted below the old one.
func remount(fstype, target string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(target))
	if err != nil {
		return err
	}
	trees, err := cloneTrees(directlyBelow(mounts, target))
	defer func() {
		for _, fd := range trees {
			_ = unix.Close(fd)
		}
	}()
	if err != nil {
		return err
	}
	if err := unix.Mount(fstype, target, fstype, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	for path, fd := range trees {
		err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
		if err != nil && !errors.Is(err, unix.ENOENT) { // what it was mounted on depends on the namespace
			return fmt.Errorf("mount %s again: %w", path, err)
		}
	}
	return nil
}

// directlyBelow returns the paths of the mounts whose parent is the one at target.
func directlyBelow(mounts []*mountinfo.Info, target string) []string {
	parent := -1
	for _, mount := range mounts {
		if mount.Mountpoint == target {
			parent = mount.ID // the last of several is the visible one
		}
	}
	var paths []string
	for _, mount := range mounts {
		if mount.Parent == parent && mount.Mountpoint != target {
			paths = append(paths, mount.Mountpoint)
		}
	}
	return paths
}

// cloneTrees clones the mounts at the paths, each with all mounts below it, and returns their descriptors. The caller closes
// them, also after an error.
func cloneTrees(paths []string) (map[string]int, error) {
	trees := make(map[string]int)
	for _, path := range paths {
		fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return trees, fmt.Errorf("clone the mount %s: %w", path, err)
		}
		trees[path] = fd
	}
	return trees, nil
}
