package mounts

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// MountOnce calls mount for dir, which it creates, unless the volume is mounted there already, which matches decides by the root of the mount.
// Another mount, or one with another access mode, is unmounted first. A mount that fails leaves nothing.
func MountOnce(
	ctx context.Context, mounter Mounter, dir string, readOnly bool, matches func(*unix.Stat_t) bool, mount func() error,
) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	mounted, err := mounter.IsMountPoint(dir)
	if err != nil {
		return err
	}
	if mounted {
		fits, err := isMountedAs(dir, readOnly, matches)
		if err != nil || fits {
			return err
		}
		if err := UnmountPoint(ctx, mounter, dir); err != nil {
			return err
		}
	}
	if err := mount(); err != nil {
		return errors.Join(err, UnmountAndRemoveDir(context.WithoutCancel(ctx), mounter, dir))
	}
	return nil
}

// isMountedAs reports whether dir shows what matches expects, with the same access mode.
func isMountedAs(dir string, readOnly bool, matches func(*unix.Stat_t) bool) (bool, error) {
	var have unix.Stat_t
	if err := unix.Stat(dir, &have); err != nil {
		return false, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return false, err
	}
	return matches(&have) && (fs.Flags&unix.ST_RDONLY != 0) == readOnly, nil
}
