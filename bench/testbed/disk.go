package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// disk is a file system of its own in a file beside the directory where it is mounted. Nil is none.
type disk struct{ dir, image string }

// MountDisk makes a file system of that size, an ext4 with a journal, and mounts it at dir. remove unmounts it.
func MountDisk(dir string, size int64) (remove func() error, err error) {
	d, err := mountDisk(dir, size)
	if err != nil {
		return nil, err
	}
	return d.remove, nil
}

// mountDisk makes a file system of that size and mounts it; it does nothing if size is 0. The space is allocated: it cannot run out
// before the file system is full.
func mountDisk(dir string, size int64) (*disk, error) {
	if size == 0 {
		return nil, nil
	}
	d := &disk{dir: dir, image: dir + ".img"}
	if err := d.create(size); err != nil {
		return nil, errors.Join(fmt.Errorf("make a file system of %d bytes for %s: %w", size, dir, err), d.remove())
	}
	return d, nil
}

func (d *disk) create(size int64) error {
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(d.image, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Fallocate(int(file.Fd()), 0, 0, size), file.Close()); err != nil {
		return err
	}
	// All of it is initialized at once: what the kernel writes later would be measured.
	for _, argv := range [][]string{
		{"mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", d.image}, {"mount", "-o", "loop", d.image, d.dir},
	} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", argv[0], err, out)
		}
	}
	return nil
}

// remove unmounts the file system, which frees its loop device, and deletes the file.
func (d *disk) remove() error {
	if d == nil {
		return nil
	}
	var errs []error
	if err := unix.Unmount(d.dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) { // it may not be mounted
		errs = append(errs, fmt.Errorf("unmount %s: %w", d.dir, err))
	}
	if err := os.Remove(d.image); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("remove the file system of %s: %w", d.dir, err))
	}
	return errors.Join(errs...)
}
