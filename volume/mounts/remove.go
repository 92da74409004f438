package mounts

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrMountPoint means that a tree was not removed completely because something is mounted in it.
var ErrMountPoint = errors.New("a mount point is in the way")

const (
	// maxDepth bounds how many directories are open at once. A deeper directory is first moved to the top of
	// the tree: containers can create trees deeper than any limit on open files.
	maxDepth = 64
	// direntBatch is how many names are read before they are removed, so that a huge directory does not need much
	// memory.
	direntBatch = 1024
)

// beneath resolves one name in an open directory: no symbolic link, no mount point, nothing above.
var beneath = &unix.OpenHow{
	Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK,
	Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
}

// RemoveTree removes path and all that is below it, as os.RemoveAll does, but never passes through a mount point
// (bind mounts included) or a symbolic link, however the tree is changed meanwhile. At a mount point it
// stops with an error for which errors.Is(err, ErrMountPoint) is true. A missing path is fine.
func RemoveTree(path string) error {
	parent, err := unix.Open(filepath.Dir(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer func() { _ = unix.Close(parent) }()
	r := &remover{top: parent, prefix: filepath.Base(path)}
	if err := r.remove(parent, r.prefix, 0); err != nil {
		return fmt.Errorf("remove tree %q: %w", path, err)
	}
	// A directory that was moved up is now beside the tree, and may contain deep directories again.
	for n := 0; n < r.moved; n++ {
		if err := r.remove(parent, r.movedName(n), 0); err != nil {
			return fmt.Errorf("remove tree %q: %w", path, err)
		}
	}
	return nil
}

// remover removes one tree.
type remover struct {
	top    int // the directory that the tree is in
	prefix string
	moved  int // how many deep directories were moved to top
}

func (r *remover) movedName(n int) string { return r.prefix + ".deep." + strconv.Itoa(n) }

// remove removes one name in an open directory.
func (r *remover) remove(dir int, name string, depth int) error {
	err := unix.Unlinkat(dir, name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err == unix.EBUSY {
		return fmt.Errorf("remove %q: %w", name, ErrMountPoint)
	}
	if err != unix.EISDIR && err != unix.EPERM {
		return &os.PathError{Op: "unlink", Path: name, Err: err}
	}
	if depth >= maxDepth {
		if err := unix.Renameat(dir, name, r.top, r.movedName(r.moved)); err != nil {
			return &os.PathError{Op: "move up", Path: name, Err: err}
		}
		r.moved++
		return nil
	}
	if err := r.removeEntries(dir, name, depth); err != nil {
		return err
	}
	err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	switch err {
	case nil, unix.ENOENT:
		return nil
	case unix.EBUSY:
		return fmt.Errorf("remove %q: %w", name, ErrMountPoint)
	}
	return &os.PathError{Op: "rmdir", Path: name, Err: err}
}

// removeEntries removes everything in the directory of this name.
func (r *remover) removeEntries(dir int, name string, depth int) error {
	fd, err := openat2(dir, name, beneath)
	switch {
	case err == nil:
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("enter %q: %w", name, ErrMountPoint)
	default:
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	// An immutable or append-only directory gives EPERM above for its entries; the message names the entry.
	file := os.NewFile(uintptr(fd), name)
	defer func() { _ = file.Close() }()
	for {
		names, err := file.Readdirnames(direntBatch)
		if len(names) == 0 {
			if err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("list %q: %w", name, err)
			}
			return nil
		}
		for _, child := range names {
			if err := r.remove(fd, child, depth+1); err != nil {
				return err
			}
		}
		if _, err := file.Seek(0, 0); err != nil {
			return fmt.Errorf("list %q again: %w", name, err)
		}
	}
}

// openat2 is unix.Openat2, repeated while a rename elsewhere disturbs the kernel's lookup or a signal interrupts it.
func openat2(dir int, name string, how *unix.OpenHow) (int, error) {
	for {
		fd, err := unix.Openat2(dir, name, how)
		if err != unix.EAGAIN && err != unix.EINTR {
			return fd, err
		}
	}
}
