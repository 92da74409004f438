// Package treecopy copies a directory with all that is in it: owners, modes, times, extended attributes, hard links, holes and devices.
// Files share their blocks with the originals where the filesystem can.
package treecopy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/filecopy"
)

// Stats say what a copy has.
type Stats struct {
	// Files counts regular files, Bytes is their size, and Shared is how many of these bytes are in blocks that are shared with the originals.
	Files         int
	Bytes, Shared int64
}

// Copy copies the directory from to the directory to, which must not exist. What is mounted below from is not copied: its mount point is
// empty in the copy. Sockets are left out, and what skip returns true for, given the path relative to from. The caller keeps
// writers away: a file that is removed meanwhile is an error. After an error the caller removes what there is of the copy.
func Copy(ctx context.Context, from, to string, skip func(path string) bool) (Stats, error) {
	c := copier{from: from, to: to, skip: skip, links: map[inode]string{}, mounts: map[string]bool{}}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(from))
	if err != nil {
		return c.stats, fmt.Errorf("copy %s: read the mount table: %w", from, err)
	}
	for _, mount := range mounts {
		c.mounts[mount.Mountpoint] = mount.Mountpoint != from
	}
	if err := c.directory(ctx, "."); err != nil {
		return c.stats, fmt.Errorf("copy %s to %s: %w", from, to, err)
	}
	return c.stats, nil
}

type inode struct{ device, number uint64 }

type copier struct {
	from, to string
	skip     func(string) bool
	links    map[inode]string // paths of copies of files with several names
	mounts   map[string]bool
	stats    Stats
}

// directory copies a directory. Its mode and times come last, because what is in it changes them.
func (c *copier) directory(ctx context.Context, path string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	source, target := filepath.Join(c.from, path), filepath.Join(c.to, path)
	var stat unix.Stat_t
	if err := unix.Lstat(source, &stat); err != nil {
		return &fs.PathError{Op: "lstat", Path: source, Err: err}
	}
	if err := os.Mkdir(target, 0o700); err != nil {
		return err
	}
	if !c.mounts[source] {
		entries, err := os.ReadDir(source)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			below := filepath.Join(path, entry.Name())
			if c.skip != nil && c.skip(below) {
				continue
			}
			if entry.IsDir() {
				err = c.directory(ctx, below)
			} else {
				err = c.other(ctx, below)
			}
			if err != nil {
				return err
			}
		}
	}
	return attributes(source, target, &stat)
}

// other copies what is not a directory.
func (c *copier) other(ctx context.Context, path string) error {
	source, target := filepath.Join(c.from, path), filepath.Join(c.to, path)
	var stat unix.Stat_t
	if err := unix.Lstat(source, &stat); err != nil {
		return &fs.PathError{Op: "lstat", Path: source, Err: err}
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFSOCK {
		return nil
	}
	id := inode{device: uint64(stat.Dev), number: stat.Ino}
	if first, found := c.links[id]; found {
		return os.Link(first, target)
	}
	if stat.Nlink > 1 {
		c.links[id] = target
	}
	var err error
	switch kind := stat.Mode & unix.S_IFMT; kind {
	case unix.S_IFREG:
		err = c.file(ctx, source, target)
	case unix.S_IFLNK:
		var link string
		if link, err = os.Readlink(source); err == nil {
			err = os.Symlink(link, target)
		}
	default:
		if err = unix.Mknod(target, kind|0o600, int(stat.Rdev)); err != nil {
			err = &fs.PathError{Op: "mknod", Path: target, Err: err}
		}
	}
	if err != nil {
		return err
	}
	return attributes(source, target, &stat)
}

func (c *copier) file(ctx context.Context, source, target string) (err error) {
	dst, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	if c.mounts[source] {
		return nil
	}
	src, err := os.Open(source)
	if err != nil {
		return err
	}
	defer src.Close()
	info, err := src.Stat()
	if err != nil {
		return err
	}
	c.stats.Files++
	c.stats.Bytes += info.Size()
	if info.Size() == 0 {
		return nil
	}
	shared, err := filecopy.Reflink(dst, src)
	if err == nil && !shared {
		err = filecopy.Sparse(ctx, dst, src)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	if shared {
		c.stats.Shared += info.Size()
	}
	return nil
}

// attributes gives the copy the owner, mode, times and extended attributes of the original. The owner comes first, because a change of it
// clears bits of the mode and capabilities.
func attributes(source, target string, stat *unix.Stat_t) error {
	if err := os.Lchown(target, int(stat.Uid), int(stat.Gid)); err != nil {
		return err
	}
	if err := extendedAttributes(source, target); err != nil {
		return err
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(target, stat.Mode&0o7777); err != nil {
			return &fs.PathError{Op: "chmod", Path: target, Err: err}
		}
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, target, []unix.Timespec{stat.Atim, stat.Mtim}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &fs.PathError{Op: "utimensat", Path: target, Err: err}
	}
	return nil
}

func extendedAttributes(source, target string) error {
	names, err := grow(func(buffer []byte) (int, error) { return unix.Llistxattr(source, buffer) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "llistxattr", Path: source, Err: err}
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value, err := grow(func(buffer []byte) (int, error) { return unix.Lgetxattr(source, name, buffer) })
		if err == nil {
			err = unix.Lsetxattr(target, name, value, 0)
		}
		if err != nil {
			return &fs.PathError{Op: "copy the extended attribute " + name, Path: source, Err: err}
		}
	}
	return nil
}

// grow calls read with a buffer that is large enough.
func grow(read func([]byte) (int, error)) ([]byte, error) {
	size, err := read(nil)
	for err == nil && size > 0 {
		buffer := make([]byte, size)
		n, readErr := read(buffer)
		if readErr == nil {
			return buffer[:n], nil
		}
		if !errors.Is(readErr, unix.ERANGE) {
			return nil, readErr
		}
		size, err = read(nil)
	}
	return nil, err
}
