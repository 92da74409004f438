package mounts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// MakeShared makes mounts below dir propagate to and from the mount namespaces of containers. If the mount that dir
// is on is not shared, dir is bind-mounted onto itself and that new mount is made shared, so that nothing outside dir
// changes. It reports whether dir is such a mount of its own, which ReleaseShared undoes.
func MakeShared(mounter Mounter, dir string) (own bool, err error) {
	is, err := mounter.IsMountPoint(dir)
	if err != nil {
		return false, fmt.Errorf("make %q shared: %w", dir, err)
	}
	if !is {
		shared, err := isOnSharedMount(dir)
		if err != nil {
			return false, fmt.Errorf("make %q shared: %w", dir, err)
		}
		if shared {
			return false, nil
		}
		if err := mounter.Mount(dir, dir, "", []string{"rbind"}); err != nil {
			return false, fmt.Errorf("make %q shared: %w", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return false, fmt.Errorf("make %q shared: %w", dir, err)
	}
	return isSelfBind(dir)
}

// ReleaseShared unmounts the bind mount of dir onto itself that MakeShared created, if there is one. Nothing else may
// be mounted below dir. If the mount is busy, as it is while a process listens on a socket below dir, it is removed
// from the mount table all the same, and the processes that use it keep using the same directory.
func ReleaseShared(mounter Mounter, dir string) error {
	is, err := mounter.IsMountPoint(dir)
	if errors.Is(err, os.ErrNotExist) || (err == nil && !is) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("release %q: %w", dir, err)
	}
	own, err := isSelfBind(dir)
	if err != nil || !own {
		return err
	}
	err = mounter.Unmount(dir)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return &os.PathError{Op: "detach", Path: dir, Err: err}
	}
	return nil
}

// isOnSharedMount reports whether the mount that dir lies on is shared.
func isOnSharedMount(dir string) (bool, error) {
	infos, err := mountsAbove(dir)
	if err != nil {
		return false, err
	}
	best := ""
	shared := false
	for _, info := range infos {
		if len(info.Mountpoint) >= len(best) {
			best = info.Mountpoint
			shared = strings.Contains(info.Optional, "shared:")
		}
	}
	return shared, nil
}

// isSelfBind reports whether the mount on dir shows the very directory that it covers.
func isSelfBind(dir string) (bool, error) {
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return false, err
	}
	infos, err := mountsAbove(dir)
	if err != nil {
		return false, err
	}
	var top, under *mountinfo.Info
	for _, info := range infos {
		switch {
		case info.Mountpoint == resolved:
			top = info
		case under == nil || len(info.Mountpoint) >= len(under.Mountpoint):
			under = info
		}
	}
	if top == nil || under == nil || top.Major != under.Major || top.Minor != under.Minor {
		return false, nil
	}
	relative, err := filepath.Rel(under.Mountpoint, resolved)
	if err != nil {
		return false, err
	}
	return top.Root == filepath.Join(under.Root, relative), nil
}

// mountsAbove lists the mounts on dir and its ancestors, in the order of the mount table.
func mountsAbove(dir string) ([]*mountinfo.Info, error) {
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	return mountinfo.GetMounts(mountinfo.ParentsFilter(resolved))
}
