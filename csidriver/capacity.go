package csidriver

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// errNoSpace says that the disk has not enough free space for a volume's size.
var errNoSpace = errors.New("not enough disk space")

// maxImage is the largest image in bytes: no file of ext4 is larger.
const maxImage = 16<<40 - sizeAlignment

// space is how the disk below the root is used, in bytes.
type space struct {
	// free is what the file system has available now.
	free int64
	// unwritten is what the volumes may still write: their counted sizes without the blocks that they own.
	unwritten int64
	// reserved is for images that are being created or expanded.
	reserved int64
	// kept is for other users of the disk.
	kept int64
}

// metadataShare is the inverse of the share of an image's size that the file system may need to record where its blocks are: 1 of
// 340 with ext4, if each block is written on its own.
const metadataShare = 256

// left returns how many bytes new volumes may have.
func (s space) left() int64 {
	promised := s.unwritten + s.reserved
	left := max(s.free-promised-promised/metadataShare-s.kept, 0)
	return left / (metadataShare + 1) * metadataShare
}

// space returns how the disk is used.
func (s *store) space() (space, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spaceLocked()
}

func (s *store) spaceLocked() (space, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(s.root, &stat); err != nil {
		return space{}, fmt.Errorf("read the free space of %q: %w", s.root, err)
	}
	sp := space{
		free:     int64(min(stat.Bavail, math.MaxInt64/uint64(max(stat.Bsize, 1)))) * stat.Bsize,
		reserved: s.reserved, kept: s.keepFree,
	}
	volumes, err := s.list(s.volumes())
	if err != nil {
		return space{}, err
	}
	for _, v := range volumes {
		unwritten, err := s.unwritten(v)
		if err != nil { // calls for this volume return the error
			s.logUnreadable(v.id, err)
			unwritten = v.counted(v.size)
		}
		sp.unwritten += unwritten
	}
	return sp, nil
}

// unwritten returns how many bytes of disk space the volume may use beyond those that it has for itself.
func (s *store) unwritten(v *item) (int64, error) {
	counted := v.counted(v.size)
	if counted == 0 {
		return 0, nil
	}
	owned, err := s.owned(v)
	return max(counted-owned, 0), err
}

// owned returns how many bytes of disk space only this image uses. A block that another image shares is not one of them: if
// one of the images overwrites it, the file system allocates a new one.
func (s *store) owned(it *item) (int64, error) {
	if !it.mayShare() {
		return it.allocated, nil
	}
	shared, err := sharedBytes(s.image(it.id))
	return max(it.allocated-shared, 0), err
}

// copyNeeds returns how many bytes of disk space a copy of the image needs, besides those of a volume that is made of it: where
// the file system has reflinks, those are the blocks that the source no longer has for itself.
func (s *store) copyNeeds(from *item) (int64, error) {
	if !s.reflinks {
		return from.allocated, nil
	}
	if isSnapshotID(from.id) {
		return 0, nil // nothing writes to it
	}
	owned, err := s.owned(from)
	return min(owned, from.counted(from.size)), err
}

// reserve reserves disk space for an image that is about to be created or expanded; what names it in errors. The caller calls
// release once the image has its size or has failed.
func (s *store) reserve(what string, bytes int64) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp, err := s.spaceLocked()
	if err != nil {
		return nil, err
	}
	if bytes > sp.left() {
		return nil, fmt.Errorf("%w for %s: it needs %s, and %s are left below %q: of %s free, volumes may still write %s, "+
			"images in progress %s, and %s are kept for others; request less, delete volumes or snapshots, "+
			"or use a StorageClass whose parameter %q is higher (default 1)",
			errNoSpace, what, bytesText(bytes), bytesText(sp.left()), s.root, bytesText(sp.free), bytesText(sp.unwritten),
			bytesText(sp.reserved), bytesText(sp.kept), ParameterOvercommit)
	}
	s.reserved += bytes
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reserved -= bytes
	}, nil
}

// bytesText returns a number of bytes for people, with the suffixes of Kubernetes' quantities.
func bytesText(bytes int64) string {
	value, suffix := float64(bytes), 0
	for value >= 1024 && suffix < 5 {
		value /= 1024
		suffix++
	}
	if suffix == 0 {
		return fmt.Sprintf("%d", bytes)
	}
	return fmt.Sprintf("%.1f%ci", value, " KMGTP"[suffix])
}
