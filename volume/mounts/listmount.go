package mounts

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From <linux/mount.h>, for listmount(2) and statmount(2) of Linux 6.8 and later.
const (
	mountRequestSize = 24   // struct mnt_id_req in its first version
	statMountPoint   = 0x10 // STATMOUNT_MNT_POINT
	statMountOffset  = 108  // of the field of struct statmount with the offset of the mount point's string
	statMountStrings = 512  // the size of struct statmount, after which its strings follow
	mountBatch       = 512  // how many mounts are listed at once
)

// errNoListmount means that the kernel has no listmount, or a filter of system calls denies it.
var errNoListmount = errors.New("listmount is not available")

// mountRequest is struct mnt_id_req.
type mountRequest struct {
	size, spare uint32
	id, param   uint64
}

// listByListmount is ListBelow by listmount: it reads only mounts below the one that dir's parent is on, and never
// formats or parses the whole table. The error wraps errNoListmount if that is not possible.
func listByListmount(dir string) ([]string, error) {
	if dir == "/" {
		return nil, errNoListmount // it has no parent
	}
	var stat unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, filepath.Dir(dir), unix.AT_NO_AUTOMOUNT, unix.STATX_MNT_ID_UNIQUE, &stat)
	if err != nil {
		return nil, &os.PathError{Op: "stat", Path: filepath.Dir(dir), Err: err}
	}
	if stat.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		return nil, errNoListmount
	}
	var paths []string
	ids, buffer := make([]uint64, mountBatch), make([]byte, statMountStrings+unix.PathMax)
	for after := uint64(0); ; {
		n, err := listMounts(stat.Mnt_id, after, ids)
		if err != nil {
			return nil, err
		}
		for _, id := range ids[:n] {
			path, err := mountPoint(id, &buffer)
			if err != nil {
				return nil, err
			}
			if path == dir || strings.HasPrefix(path, dir+"/") {
				paths = append(paths, path)
			}
			after = id
		}
		if n < len(ids) {
			return paths, nil
		}
	}
}

// listMounts lists the mounts below the one of this id, from the one after another mount.
func listMounts(below, after uint64, ids []uint64) (int, error) {
	request := mountRequest{size: mountRequestSize, id: below, param: after}
	n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&request)),
		uintptr(unsafe.Pointer(&ids[0])), uintptr(len(ids)), 0, 0, 0)
	switch errno {
	case 0:
		return int(n), nil
	case unix.ENOSYS, unix.EPERM, unix.EINVAL:
		return 0, errNoListmount
	}
	return 0, fmt.Errorf("list mounts: %w", errno)
}

// mountPoint returns the path of a mount, empty if it no longer exists. The buffer grows if the result does not fit.
func mountPoint(id uint64, buffer *[]byte) (string, error) {
	request := mountRequest{size: mountRequestSize, id: id, param: statMountPoint}
	for {
		b := *buffer
		_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&request)),
			uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0, 0, 0)
		switch errno {
		case 0:
			begin := statMountStrings + int(binary.NativeEndian.Uint32(b[statMountOffset:]))
			if begin >= len(b) {
				return "", fmt.Errorf("read mount %d: the result has no string", id)
			}
			text, _, _ := bytes.Cut(b[begin:], []byte{0})
			return string(text), nil
		case unix.EOVERFLOW:
			*buffer = make([]byte, 2*len(b))
		case unix.ENOENT:
			return "", nil
		case unix.ENOSYS, unix.EPERM, unix.EINVAL:
			return "", errNoListmount
		default:
			return "", fmt.Errorf("read mount %d: %w", id, errno)
		}
	}
}
