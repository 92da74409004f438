package csidriver

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's interface to the extents of a file (linux/fiemap.h).
const (
	fiemapRequest    = 0xC020660B // FS_IOC_FIEMAP
	fiemapSync       = 0x1
	extentLast       = 0x1
	extentUnknown    = 0x2
	extentDelayed    = 0x4
	extentEncoded    = 0x8
	extentInline     = 0x200
	extentUnwritten  = 0x800
	extentShared     = 0x2000
	extentsPerIoctl  = 512
	fiemapWholeRange = ^uint64(0)
)

// extent is struct fiemap_extent.
type extent struct {
	logical, physical, length uint64
	_                         [2]uint64
	flags                     uint32
	_                         [3]uint32
}

// end returns the offset after the extent.
func (e extent) end() uint64 { return e.logical + e.length }

// extentQuery is struct fiemap with its extents.
type extentQuery struct {
	start, length          uint64
	flags, mapped, size, _ uint32
	extents                [extentsPerIoctl]extent
}

// errNoExtents says that the file system does not report the extents of its files.
var errNoExtents = errors.New("the file system does not report the extents of files (FIEMAP)")

// forEachExtent calls f with the extents of the file from an offset on, in their order, until f returns false. With sync, it
// writes what is only in memory first.
func forEachExtent(file *os.File, start uint64, sync bool, f func(extent) (bool, error)) error {
	query := &extentQuery{size: extentsPerIoctl}
	if sync {
		query.flags = fiemapSync
	}
	for {
		query.start, query.length, query.mapped = start, fiemapWholeRange-start, 0
		err := ioctl(file, fiemapRequest, unsafe.Pointer(query))
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) {
			return errNoExtents
		}
		if err != nil {
			return fmt.Errorf("read the extents of %q: %w", file.Name(), err)
		}
		for _, e := range query.extents[:query.mapped] {
			if more, err := f(e); err != nil || !more {
				return err
			}
			start = e.end()
			if e.flags&extentLast != 0 {
				return nil
			}
		}
		if query.mapped == 0 {
			return nil
		}
	}
}

// sharedBytes returns how many bytes of the image have blocks that other files share.
func sharedBytes(image string) (int64, error) {
	file, err := os.Open(image)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	var shared int64
	err = forEachExtent(file, 0, false, func(e extent) (bool, error) {
		if e.flags&extentShared != 0 {
			shared += int64(e.length)
		}
		return true, nil
	})
	if errors.Is(err, errNoExtents) {
		return 0, nil // then it has no reflinks either
	}
	return shared, err
}
