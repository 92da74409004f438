package csidriver

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// errNoSpace says that the disk has not enough free space for a volume's size.
var errNoSpace = errors.New("not enough disk space")

// available returns how many bytes new volumes may have.
func (s *store) available() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.availableLocked()
}

func (s *store) availableLocked() (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(s.root, &stat); err != nil {
		return 0, fmt.Errorf("read the free space of %q: %w", s.root, err)
	}
	free := int64(min(stat.Bavail, math.MaxInt64/uint64(max(stat.Bsize, 1)))) * stat.Bsize
	if s.thin {
		return free, nil
	}
	volumes, err := s.list(s.volumes())
	if err != nil {
		return 0, err
	}
	for _, v := range volumes {
		free -= max(v.size-v.allocated, 0)
	}
	return max(free-s.reserved, 0), nil
}

// reserve reserves bytes for an image that is about to be created or expanded. The caller calls release once the image
// has its size or has failed.
func (s *store) reserve(bytes int64) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	free, err := s.availableLocked()
	if err != nil {
		return nil, err
	}
	if bytes > free && !s.thin {
		return nil, fmt.Errorf("%w: %d bytes requested, %d available below %q", errNoSpace, bytes, free, s.root)
	}
	s.reserved += bytes
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.reserved -= bytes
	}, nil
}
