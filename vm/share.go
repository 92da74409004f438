package vm

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
)

// WithDisk makes the disk at path, for any number of machines, and returns the share with it. It needs its directory no longer.
func (s Share) WithDisk(ctx context.Context, path string) (Share, error) {
	disk, err := filepath.Abs(path)
	if err != nil {
		return Share{}, fmt.Errorf("share %s: %w", s.Dir, err)
	}
	return Share{Dir: s.Dir, Path: s.Path, Disk: disk}, s.makeDisk(ctx, disk)
}

// makeDisk makes a disk with a copy of the directory, just large enough.
func (s Share) makeDisk(ctx context.Context, path string) error {
	const (
		block    = 4 << 10
		overhead = 32 << 20
	)
	size := int64(overhead)
	err := filepath.WalkDir(s.Dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		// An inode, and whole blocks of content with their part of the file system's own tables.
		size += 512 + (info.Size()+block)/block*block*102/100
		return nil
	})
	if err != nil {
		return fmt.Errorf("share %s: %w", s.Dir, err)
	}
	return command(ctx, "mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", "-i", "16384", "-d", s.Dir, path, fmt.Sprintf("%dK", size>>10))
}
