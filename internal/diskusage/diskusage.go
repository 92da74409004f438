// Package diskusage measures how much of a file system the files of a directory occupy.
package diskusage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// blockSize is the unit of stat's blocks, whatever the file system's own block size is.
const blockSize = 512

// Usage is what files occupy.
type Usage struct{ Bytes, Inodes int64 }

// Measure returns what the tree below root, with root, occupies. A file with several names counts once; file systems that are
// mounted below root do not count. It stops as soon as more bytes than enough are found; 0 means never. A root that does not
// exist occupies nothing.
func Measure(ctx context.Context, root string, enough int64) (Usage, error) {
	var top syscall.Stat_t
	err := syscall.Lstat(root, &top)
	if errors.Is(err, fs.ErrNotExist) {
		return Usage{}, nil
	}
	if err != nil {
		return Usage{}, &os.PathError{Op: "stat", Path: root, Err: err}
	}
	var used Usage
	linked := make(map[uint64]struct{})
	err = filepath.WalkDir(root, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed meanwhile
			}
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return nil // removed meanwhile
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || stat.Dev != top.Dev {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if stat.Nlink > 1 && !entry.IsDir() {
			if _, seen := linked[stat.Ino]; seen {
				return nil
			}
			linked[stat.Ino] = struct{}{}
		}
		used.Bytes, used.Inodes = used.Bytes+stat.Blocks*blockSize, used.Inodes+1
		if enough > 0 && used.Bytes > enough {
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return Usage{}, fmt.Errorf("measure %q: %w", root, err)
	}
	return used, nil
}
