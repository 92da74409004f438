package local

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	// readBatch is how many names are read at once.
	readBatch = 512
	// maxDepth bounds the open descriptors: deeper directories are first moved to the top, so that a Pod cannot create a
	// volume that cannot be removed.
	maxDepth = 64
)

// remover removes the contents of one directory.
type remover struct {
	interrupted func() error
	top         *os.File
	moved       int
}

// removeContents removes the contents of dir, but not dir.
func removeContents(interrupted func() error, dir *os.File) error {
	e := &remover{interrupted: interrupted, top: dir}
	for {
		before := e.moved
		if err := e.run(dir, 1); err != nil {
			return err
		}
		if e.moved == before {
			return nil
		}
	}
}

func (e *remover) run(dir *os.File, depth int) error {
	for {
		if err := e.interrupted(); err != nil {
			return fmt.Errorf("interrupted: %w", err)
		}
		// Some file systems skip names when others are removed while reading: read from the start until it is empty.
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			return err
		}
		names, err := dir.Readdirnames(readBatch)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if len(names) == 0 {
			return nil
		}
		before := e.moved
		for _, name := range names {
			if err := e.removeOne(dir, name, depth); err != nil {
				return err
			}
		}
		if dir == e.top && e.moved != before && len(names) < readBatch {
			return nil // only what was just moved here is left: a new round
		}
	}
}

// removeOne removes one entry of any type.
func (e *remover) removeOne(dir *os.File, name string, depth int) error {
	fd := int(dir.Fd())
	path := filepath.Join(dir.Name(), name)
	err := unix.Unlinkat(fd, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return &os.PathError{Op: "unlink", Path: path, Err: err}
	}
	rmErr := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
	switch {
	case rmErr == nil, errors.Is(rmErr, unix.ENOENT):
		return nil
	case errors.Is(rmErr, unix.ENOTDIR):
		return &os.PathError{Op: "unlink", Path: path, Err: err}
	case errors.Is(rmErr, unix.EBUSY):
		return fmt.Errorf("something is mounted on %q; unmount it", path)
	case !errors.Is(rmErr, unix.ENOTEMPTY) && !errors.Is(rmErr, unix.EEXIST):
		return &os.PathError{Op: "rmdir", Path: path, Err: rmErr}
	}
	if depth >= maxDepth {
		return e.moveToTop(dir, name)
	}
	sub, err := openDir(dir, name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("something is mounted on %q; unmount it", path)
	case err != nil:
		return err
	}
	err = e.run(sub, depth+1)
	sub.Close()
	if err != nil {
		return err
	}
	if err := unix.Unlinkat(fd, name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: path, Err: err}
	}
	return nil
}

// moveToTop moves a directory that is too deep to the top, under an unused name.
func (e *remover) moveToTop(dir *os.File, name string) error {
	for {
		e.moved++
		free := "moved-" + strconv.Itoa(e.moved)
		err := unix.Renameat2(int(dir.Fd()), name, int(e.top.Fd()), free, unix.RENAME_NOREPLACE)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EEXIST):
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EBUSY):
			return fmt.Errorf("something is mounted on %q; unmount it", filepath.Join(dir.Name(), name))
		default:
			return &os.PathError{Op: "rename", Path: filepath.Join(dir.Name(), name), Err: err}
		}
	}
}
