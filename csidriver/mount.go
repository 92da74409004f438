package csidriver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ioctls that freeze a mounted filesystem, and undo it.
const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878
)

// isFilesystemMount reports whether the mount is one of the filesystem on the device.
func (l *loop) isFilesystemMount(m *mountinfo.Info) bool {
	return m.Major == loopMajor && m.Minor == l.number
}

// isNodeMount reports whether the mount is a bind mount of the device's own node, or of that of its mapping, which is how raw block
// volumes are published.
func (l *loop) isNodeMount(m *mountinfo.Info) bool {
	node := filepath.Base(m.Root)
	return (m.FSType == "devtmpfs" || m.FSType == "tmpfs") && (node == "loop"+strconv.Itoa(l.number) || node == l.mapped && node != "")
}

// isDetachedNodeMount reports whether the mount is one of the node of a loop device that has no image: a container that had it as raw
// block device can detach it, although the volume is published. Or of the node of a mapping that has been removed.
func isDetachedNodeMount(m *mountinfo.Info) bool {
	if node := filepath.Base(m.Root); strings.HasPrefix(node, "dm-") && (m.FSType == "devtmpfs" || m.FSType == "tmpfs") {
		_, err := os.Stat("/sys/block/" + node)
		return errors.Is(err, os.ErrNotExist)
	}
	number, isLoop := strings.CutPrefix(filepath.Base(m.Root), "loop")
	if _, err := strconv.Atoi(number); err != nil || !isLoop || m.FSType != "devtmpfs" && m.FSType != "tmpfs" {
		return false
	}
	_, err := os.Stat("/sys/block/loop" + number + "/loop/backing_file")
	return errors.Is(err, os.ErrNotExist)
}

// mounts returns the mounts of the device: those of its filesystem and those of its node.
func (l *loop) mounts() (filesystem, node []*mountinfo.Info, err error) {
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, nil, fmt.Errorf("read mount table: %w", err)
	}
	for _, m := range all {
		switch {
		case l.isFilesystemMount(m):
			filesystem = append(filesystem, m)
		case l.isNodeMount(m):
			node = append(node, m)
		}
	}
	return filesystem, node, nil
}

// mountAt returns what is mounted on path, the topmost mount, nil if it is not a mount point.
func mountAt(path string) (*mountinfo.Info, error) {
	infos, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	if len(infos) == 0 {
		return nil, nil
	}
	return infos[len(infos)-1], nil
}

// resolveTarget validates a mount target, and returns it without symbolic links. exists is false if the path or its
// parent does not exist.
func resolveTarget(field, path string) (clean string, exists bool, err error) {
	if !filepath.IsAbs(path) {
		return "", false, status.Errorf(codes.InvalidArgument, "%s: %q is not an absolute path", field, path)
	}
	path = filepath.Clean(path)
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if errors.Is(err, os.ErrNotExist) {
		return path, false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("%s: %w", field, err)
	}
	clean = filepath.Join(parent, filepath.Base(path))
	info, err := os.Lstat(clean)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return clean, false, nil
	case err != nil:
		return "", false, fmt.Errorf("%s: %w", field, err)
	case info.Mode()&os.ModeSymlink != 0:
		return "", false, status.Errorf(codes.InvalidArgument, "%s: %q is a symbolic link", field, path)
	}
	return clean, true, nil
}

// openMount opens the root of the device's filesystem by one of its mount points, and verifies that it is that
// filesystem: another mount may hide the mount point.
func (l *loop) openMount(mounts []*mountinfo.Info) (*os.File, error) {
	var errs []error
	for _, m := range mounts {
		dir, err := os.Open(m.Mountpoint)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var stat unix.Stat_t
		err = unix.Fstat(int(dir.Fd()), &stat)
		if err == nil && unix.Major(stat.Dev) == loopMajor && int(unix.Minor(stat.Dev)) == l.number {
			return dir, nil
		}
		if err == nil {
			err = fmt.Errorf("%q is hidden by another mount", m.Mountpoint)
		}
		errs = append(errs, err, dir.Close())
	}
	return nil, fmt.Errorf("reach the filesystem on %q: %w", l.path, errors.Join(errs...))
}

// freeze flushes the filesystem to its device and blocks writes until thaw is called. dir is the filesystem's root; thaw
// closes it, or freeze itself on error.
func freeze(dir *os.File) (thaw func() error, err error) {
	err = unix.IoctlSetInt(int(dir.Fd()), fiFreeze, 0)
	if errors.Is(err, unix.EBUSY) {
		return dir.Close, nil // frozen by another program, which thaws it
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("freeze filesystem on %q: %w", dir.Name(), err), dir.Close())
	}
	return func() error {
		err := unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0)
		if err != nil {
			err = fmt.Errorf("thaw filesystem on %q: %w", dir.Name(), err)
		}
		return errors.Join(err, dir.Close())
	}, nil
}

// thaw thaws the filesystems that an earlier process left frozen when it was killed during a copy.
func (d *Driver) thaw() error {
	volumes, err := d.store.list(d.store.volumes())
	if err != nil {
		return err
	}
	for _, v := range volumes {
		device, err := d.loops.findAny(d.store.image(v.id))
		if err == nil && device == nil {
			continue
		}
		var filesystem []*mountinfo.Info
		if err == nil {
			filesystem, _, err = device.mounts()
		}
		if err != nil {
			d.logger.Error("failed to check whether a volume was left frozen", "volume", v.id, "error", err)
			continue
		}
		if len(filesystem) > 0 {
			d.thawVolume(v.id, device, filesystem)
		}
	}
	return nil
}

// thawVolume thaws one volume. It only logs errors, so that one volume does not block the others.
func (d *Driver) thawVolume(id string, device *loop, filesystem []*mountinfo.Info) {
	dir, err := device.openMount(filesystem)
	if err == nil {
		err = unix.IoctlSetInt(int(dir.Fd()), fiThaw, 0)
		dir.Close()
	}
	switch {
	case err == nil:
		d.logger.Warn("thawed a volume that was left frozen", "volume", id)
	case !errors.Is(err, unix.EINVAL): // EINVAL: not frozen
		d.logger.Error("failed to thaw a volume", "volume", id, "error", err)
	}
}
