package snapshots

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/loopdev"
)

// withDisk calls use with a directory on a file system of its own, in a file below dir, and removes it all.
func withDisk(ctx context.Context, dir string, reflinks bool, use func(dir string) error) (err error) {
	dir, err = os.MkdirTemp(dir, "disk-")
	if err != nil {
		return fmt.Errorf("make a disk: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	image, err := os.OpenFile(filepath.Join(dir, "image"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("make a disk: %w", err)
	}
	defer func() { err = errors.Join(err, image.Close()) }()
	if err := image.Truncate(diskSize); err != nil {
		return fmt.Errorf("make a disk: %w", err)
	}
	feature := "reflink=0"
	if reflinks {
		feature = "reflink=1"
	}
	if out, err := exec.CommandContext(ctx, "mkfs.xfs", "-q", "-m", feature, image.Name()).CombinedOutput(); err != nil {
		return fmt.Errorf("make a file system: %w: %s", err, bytes.TrimSpace(out))
	}
	devices := loopdev.New()
	device, err := devices.Attach(image, loopdev.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, devices.Detach(device)) }()
	mounted := filepath.Join(dir, "mounted")
	if err := os.Mkdir(mounted, 0o700); err != nil {
		return fmt.Errorf("make a disk: %w", err)
	}
	if err := unix.Mount(devices.Path(device.Number), mounted, "xfs", 0, ""); err != nil {
		return fmt.Errorf("mount a disk: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(mounted, 0)) }()
	return use(mounted)
}

// fill writes all of the file, with bytes of which no block is like another, and syncs it.
func fill(ctx context.Context, path string) (err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	chunk := bytes.Repeat([]byte("a volume that is full "), 4<<20/22+1)[:4<<20]
	for at := int64(0); at < size; at += int64(len(chunk)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		copy(chunk, fmt.Sprint(at))
		if _, err := file.WriteAt(chunk, at); err != nil {
			return fmt.Errorf("fill %q: %w", path, err)
		}
	}
	return errors.Join(file.Sync(), forget(file))
}

// forget removes the file's pages from the cache.
func forget(file *os.File) error {
	return unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// forgetPath is forget by the file's path.
func forgetPath(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), forget(file), file.Close())
}

// measureCopy copies a filled file below dir.
func measureCopy(ctx context.Context, dir string) (took time.Duration, err error) {
	source, err := os.OpenFile(filepath.Join(dir, "source"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, source.Close()) }()
	if err := fill(ctx, source.Name()); err != nil {
		return 0, err
	}
	began := time.Now()
	target, err := os.Create(filepath.Join(dir, "target"))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	if _, err := io.Copy(target, source); err != nil {
		return 0, err
	}
	if err := target.Sync(); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}
