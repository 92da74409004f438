package sizelimit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// blockSize is the unit of stat's blocks.
const blockSize = 512

// diskUsage returns how many bytes of the disk the tree takes. A file with several names counts once; file systems that
// are mounted below root do not count. It stops as soon as the sum exceeds enough.
func diskUsage(ctx context.Context, root string, enough int64) (int64, error) {
	var top syscall.Stat_t
	if err := syscall.Lstat(root, &top); err != nil {
		return 0, &os.PathError{Op: "stat", Path: root, Err: err}
	}
	var used int64
	linked := make(map[uint64]struct{})
	err := filepath.WalkDir(root, func(_ string, entry fs.DirEntry, err error) error {
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
		used += stat.Blocks * blockSize
		if used > enough {
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("measure %q: %w", root, err)
	}
	return used, nil
}
