package mounts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"
)

// Mounter mounts and unmounts. It is the part of k8s.io/mount-utils' Interface that Berth uses.
type Mounter interface {
	// Mount mounts source on target. Options are those of mount(8); "bind" together with "ro" gives a read-only
	// bind mount.
	Mount(source, target, fstype string, options []string) error
	// Unmount unmounts what is on top at target.
	Unmount(target string) error
	// IsMountPoint reports whether something is mounted on the path itself. For a missing path it returns an error for
	// which os.IsNotExist is true.
	IsMountPoint(path string) (bool, error)
}

// Syscalls is a Mounter that calls the kernel directly. The zero value is ready. It is safe for concurrent use.
type Syscalls struct{}

// maxPause is what the pauses of Unmount, which double, stay below. Together they last an eighth of a second.
const maxPause = 100 * time.Millisecond

var (
	_ Mounter = Syscalls{}
	_ Mounter = mount.Interface(nil)
)

// flags are the mount options that are flags of mount(2); every other option is data for the file system.
var flags = map[string]uintptr{
	"bind": unix.MS_BIND, "rbind": unix.MS_BIND | unix.MS_REC, "ro": unix.MS_RDONLY, "rw": 0, "defaults": 0,
	"nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC, "noatime": unix.MS_NOATIME,
	"relatime": unix.MS_RELATIME, "remount": unix.MS_REMOUNT, "nodiratime": unix.MS_NODIRATIME,
	"sync": unix.MS_SYNCHRONOUS, "dirsync": unix.MS_DIRSYNC,
}

// propagations are the options that mount(2) requires in a separate call.
var propagations = map[string]uintptr{
	"shared": unix.MS_SHARED, "rshared": unix.MS_SHARED | unix.MS_REC,
	"private": unix.MS_PRIVATE, "rprivate": unix.MS_PRIVATE | unix.MS_REC,
	"slave": unix.MS_SLAVE, "rslave": unix.MS_SLAVE | unix.MS_REC,
}

// Mount implements Mounter. If a mount needs several steps and a later one fails, the mount is undone.
func (Syscalls) Mount(source, target, fstype string, options []string) error {
	var flag, propagation uintptr
	var data []string
	for _, option := range options {
		if bit, ok := flags[option]; ok {
			flag |= bit
		} else if bit, ok := propagations[option]; ok {
			propagation |= bit
		} else {
			data = append(data, option)
		}
	}
	// The kernel ignores all other flags of a new bind mount: they need a remount of it.
	rest := flag &^ (unix.MS_BIND | unix.MS_REC | unix.MS_REMOUNT)
	again := flag&unix.MS_BIND != 0 && flag&unix.MS_REMOUNT == 0 && rest != 0
	first := flag
	if again {
		first &= unix.MS_BIND | unix.MS_REC
	}
	if err := unix.Mount(source, target, fstype, first, strings.Join(data, ",")); err != nil {
		return &os.PathError{Op: "mount " + describe(source, fstype) + " on", Path: target, Err: err}
	}
	if again {
		if err := Restrict(target, rest); err != nil {
			return rollback(target, err)
		}
	}
	if propagation != 0 {
		if err := unix.Mount("", target, "", propagation, ""); err != nil {
			return rollback(target, &os.PathError{Op: "set propagation of", Path: target, Err: err})
		}
	}
	return nil
}

// restrictions are the flags of a mount by those that statfs(2) reports.
var restrictions = map[int64]uintptr{
	unix.ST_RDONLY: unix.MS_RDONLY, unix.ST_NOSUID: unix.MS_NOSUID, unix.ST_NODEV: unix.MS_NODEV, unix.ST_NOEXEC: unix.MS_NOEXEC,
	unix.ST_NOATIME: unix.MS_NOATIME, unix.ST_NODIRATIME: unix.MS_NODIRATIME, unix.ST_RELATIME: unix.MS_RELATIME,
}

// Restrict adds flags of mount(2) to those of the mount on target alone, and not of others that show the same file system. The
// kernel would drop those that it has and that are not given again.
func Restrict(target string, flags uintptr) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(target, &fs); err != nil {
		return &os.PathError{Op: "statfs", Path: target, Err: err}
	}
	for reported, flag := range restrictions {
		if fs.Flags&reported != 0 {
			flags |= flag
		}
	}
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|flags, ""); err != nil {
		return &os.PathError{Op: "remount", Path: target, Err: err}
	}
	return nil
}

// rollback unmounts a mount that could not be completed, and returns the cause.
func rollback(target string, cause error) error {
	if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil {
		return errors.Join(cause, &os.PathError{Op: "unmount", Path: target, Err: err})
	}
	return cause
}

func describe(source, fstype string) string {
	if fstype != "" {
		return fstype
	}
	return source
}

// Unmount implements Mounter. It does not follow a symbolic link. A mount that is in use it tries again for an eighth of a
// second: a program that this process starts has all its open files until the kernel has executed it, also one that was
// closed meanwhile, and no event says when it has closed them.
func (Syscalls) Unmount(target string) error {
	err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	for pause := time.Millisecond; errors.Is(err, unix.EBUSY) && pause < maxPause; pause *= 2 {
		time.Sleep(pause)
		err = unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	}
	if err != nil {
		return &os.PathError{Op: "unmount", Path: target, Err: err}
	}
	return nil
}

// IsMountPoint implements Mounter. It queries the kernel for this one path (statx, Linux 5.8 and later) and reads the
// mount table only if the kernel does not know. It does not wait for a file server.
func (Syscalls) IsMountPoint(path string) (bool, error) {
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &stat)
	if err != nil {
		return false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if stat.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	infos, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	return len(infos) > 0, err
}

// ListBelow lists the mount points at or below dir, the deepest first, so that unmounting in this order works. A path
// that has several mounts on top of each other is listed as often. With listmount (Linux 6.8 and later)
// it queries only the mounts near dir, otherwise it reads the whole mount table.
func ListBelow(dir string) ([]string, error) {
	resolved, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list mounts under %q: %w", dir, err)
	}
	paths, err := listByListmount(resolved)
	if errors.Is(err, errNoListmount) {
		paths, err = listByMountinfo(resolved)
	}
	if err != nil {
		return nil, fmt.Errorf("list mounts under %q: %w", dir, err)
	}
	sort.Sort(sort.Reverse(sort.StringSlice(paths)))
	return paths, nil
}

// listByMountinfo is ListBelow by reading the whole mount table.
func listByMountinfo(dir string) ([]string, error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, err
	}
	paths := make([]string, 0, len(infos))
	for _, info := range infos {
		paths = append(paths, info.Mountpoint)
	}
	return paths, nil
}

// UnmountAll unmounts everything at or below dir. It continues after an error and returns all of them.
func UnmountAll(ctx context.Context, mounter Mounter, dir string) error {
	paths, err := ListBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, UnmountListed(mounter, path))
	}
	return errors.Join(errs...)
}

// UnmountListed unmounts a path that ListBelow has listed. A mount that no longer exists is fine: unmounting one shared
// mount also unmounts its peers.
func UnmountListed(mounter Mounter, path string) error {
	err := mounter.Unmount(path)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// UnmountPoint unmounts whatever is mounted on path itself, all layers of it. A path that is missing or no mount
// point is fine.
func UnmountPoint(ctx context.Context, mounter Mounter, path string) error {
	for {
		is, err := mounter.IsMountPoint(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("check for a mount: %w", err)
		}
		if !is {
			return nil
		}
		if err := mounter.Unmount(path); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}

// UnmountAndRemoveAll removes a volume's directory with its data: it unmounts what is mounted on or below dir, then
// removes the tree. A missing dir is fine.
func UnmountAndRemoveAll(ctx context.Context, mounter Mounter, dir string) error {
	if err := UnmountPoint(ctx, mounter, dir); err != nil {
		return err
	}
	err := RemoveTree(dir)
	if errors.Is(err, ErrMountPoint) {
		// There is a mount below, perhaps of a container with Bidirectional propagation.
		if err := UnmountAll(ctx, mounter, dir); err != nil {
			return err
		}
		err = RemoveTree(dir)
	}
	return err
}

// UnmountAndRemoveDir removes a volume's directory and keeps its data: it unmounts what is on dir and removes the empty
// directory. A directory that is not empty is not removed and causes an error.
func UnmountAndRemoveDir(ctx context.Context, mounter Mounter, dir string) error {
	if err := UnmountPoint(ctx, mounter, dir); err != nil {
		return err
	}
	err := unix.Rmdir(dir)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err == unix.ENOTEMPTY {
		return fmt.Errorf("remove volume directory %q: it holds files although nothing is mounted there; "+
			"move them away by hand: %w", dir, err)
	}
	return &os.PathError{Op: "rmdir", Path: dir, Err: err}
}
