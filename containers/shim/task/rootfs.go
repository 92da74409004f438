package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// rootfs is where the machine sees the root of a container, in its bundle.
//
// The machine needs to see it only until the container's first process has a mount namespace of its own. After that it would be a line,
// and a long one, of the table of mounts, which containerd and runc's library read and the kernel copies for each container that starts:
// what that costs grows with the number of Pods. So it is then taken out of that table.
type rootfs struct {
	path string // empty if the caller has prepared the root
	// held keeps the file system mounted, until it is closed, once the machine does not see it any more. Without that the last process of
	// the container would unmount it, and write its changes to the disk, before anybody learned that it has ended.
	held *os.File
}

// mountRootfs mounts the container's root in its bundle.
func mountRootfs(r *api.CreateTaskRequest) (*rootfs, error) {
	if len(r.Rootfs) == 0 {
		return &rootfs{}, nil
	}
	f := &rootfs{path: filepath.Join(r.Bundle, "rootfs")}
	if err := os.Mkdir(f.path, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
		return f, fmt.Errorf("mount the container's root: %w", err)
	}
	var mounts []mount.Mount
	for _, m := range r.Rootfs {
		mounts = append(mounts, mount.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	if err := mount.All(mounts, f.path); err != nil {
		return f, fmt.Errorf("mount the container's root: %w", err)
	}
	return f, nil
}

// hide takes the root out of the machine's table of mounts. The container keeps it.
func (f *rootfs) hide() error {
	if f.path == "" {
		return nil
	}
	held, err := os.OpenFile(f.path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("hide the container's root: %w", err)
	}
	if err := unix.Unmount(f.path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return errors.Join(fmt.Errorf("hide the container's root: %w", &os.PathError{Op: "umount", Path: f.path, Err: err}), held.Close())
	}
	f.held = held
	return nil
}

// unmount unmounts the container's root. Mounts below it and further ones at its place are found in the machine's mount table,
// which is long when there are many Pods, so that is only read if there are any.
func (f *rootfs) unmount() error {
	if f.path == "" {
		return nil
	}
	if f.held != nil {
		return f.held.Close()
	}
	if err := unix.Unmount(f.path, unix.UMOUNT_NOFOLLOW); err == nil {
		if err := unix.Unmount(f.path, unix.UMOUNT_NOFOLLOW); errors.Is(err, unix.EINVAL) { // it is no mount any more
			return nil
		}
	}
	return mount.UnmountRecursive(f.path, unix.UMOUNT_NOFOLLOW)
}

func (t *task) unmount(ctx context.Context) {
	if err := t.rootfs.unmount(); err != nil {
		log.G(ctx).WithError(err).WithField("id", t.id).Warn("failed to unmount a container's root")
	}
}
