package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/containers/shim/guard"
)

// during calls do while the machine sees the root of the container, of which pid is a process, at its path in the bundle.
func (f *rootfs) during(ctx context.Context, pid int, do func() error) (err error) {
	if f.held == nil {
		return do()
	}
	root, err := rootOf(ctx, pid)
	if err != nil {
		return fmt.Errorf("show the container's root: %w", err)
	}
	err = unix.MoveMount(int(root.Fd()), "", unix.AT_FDCWD, f.path, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if closeErr := root.Close(); err != nil || closeErr != nil {
		return fmt.Errorf("show the container's root: %w", errors.Join(err, closeErr))
	}
	defer func() {
		if hideErr := unix.Unmount(f.path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); hideErr != nil {
			err = errors.Join(err, fmt.Errorf("hide the container's root: %w", hideErr))
		}
	}()
	return do()
}

// rootOf returns a copy, mounted nowhere, of the mount that a process has at its root. Only a thread in the mount namespace of the process can
// make one, and it ends afterwards.
func rootOf(ctx context.Context, pid int) (root *os.File, err error) {
	err = errors.New("a panic") // until it has returned
	done := make(chan struct{})
	guard.Go(ctx, "task.rootOf", func() {
		defer close(done)
		runtime.LockOSThread() // for good: Go ends the thread
		root, err = copyRoot(filepath.Join("/proc", strconv.Itoa(pid), "ns", "mnt"))
	})
	<-done
	return root, err
}

func copyRoot(namespace string) (*os.File, error) {
	fd, err := unix.Open(namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: namespace, Err: err}
	}
	defer unix.Close(fd)
	// Threads share their root, and one that does cannot enter a mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return nil, os.NewSyscallError("unshare", err)
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNS); err != nil {
		return nil, &os.PathError{Op: "setns", Path: namespace, Err: err}
	}
	root, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: "/", Err: err}
	}
	return os.NewFile(uintptr(root), "/"), nil
}
