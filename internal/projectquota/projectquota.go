package projectquota

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/diskusage"
)

const (
	// firstID and lastID are the project IDs to choose from. People and other programs use small ones.
	firstID, lastID = 1 << 30, 1<<31 - 1
	// maxTries bounds the search for an unused one.
	maxTries = 1000
)

// What linux/fs.h and linux/quota.h define and package unix does not.
const (
	getAttributes = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributes = 0x401c5820 // FS_IOC_FSSETXATTR
	inherit       = 0x200      // FS_XFLAG_PROJINHERIT
	projectQuota  = 2          // PRJQUOTA
	getQuota      = 0x800007   // Q_GETQUOTA
)

// attributes is struct fsxattr.
type attributes struct {
	flags, extentSize, extents, project, copyOnWriteSize uint32
	_                                                    [8]byte
}

// quota is struct if_dqblk.
type quota struct {
	blockHardLimit, blockSoftLimit, space, inodeHardLimit, inodeSoftLimit, inodes, blockTime, inodeTime uint64
	valid                                                                                               uint32
}

// IDs chooses project IDs. It is safe for concurrent use. The zero value is ready.
type IDs struct {
	mu   sync.Mutex // guards next, and is held until a chosen ID is in use
	next uint32
}

// Assign gives an empty directory a project ID that nothing on its file system uses, and that all files inherit which are created
// below. It returns false if the file system or the kernel has no project quotas. A directory that has a project ID keeps it.
func (ids *IDs) Assign(dir string) (bool, error) {
	file, attrs, err := open(dir)
	if err != nil || file == nil {
		return false, err
	}
	defer func() { _ = file.Close() }()
	if _, counted, err := read(file, attrs.project); err != nil || !counted {
		return false, err
	}
	if attrs.project != 0 {
		return attrs.flags&inherit != 0, nil
	}
	ids.mu.Lock()
	defer ids.mu.Unlock()
	for range maxTries {
		if ids.next < firstID || ids.next >= lastID {
			ids.next = firstID + rand.Uint32N(lastID-firstID)
		}
		ids.next++
		used, _, err := read(file, ids.next)
		if err != nil {
			return false, fmt.Errorf("read project quota %d of %q: %w", ids.next, dir, err)
		}
		if used != (diskusage.Usage{}) {
			continue
		}
		attrs.project, attrs.flags = ids.next, attrs.flags|inherit
		if err := ioctl(file, setAttributes, attrs); err != nil {
			return false, fmt.Errorf("set project ID of %q: %w", dir, err)
		}
		return true, nil
	}
	return false, fmt.Errorf("no free project ID for %q among %d", dir, maxTries)
}

// Usage returns what the files of the directory's project occupy, and false if the kernel does not count them.
func Usage(dir string) (diskusage.Usage, bool, error) {
	file, attrs, err := open(dir)
	if err != nil || file == nil {
		return diskusage.Usage{}, false, err
	}
	defer func() { _ = file.Close() }()
	if attrs.project < firstID || attrs.flags&inherit == 0 {
		return diskusage.Usage{}, false, nil
	}
	return read(file, attrs.project)
}

// open opens a directory and reads its attributes; it returns no file if the file system has none.
func open(dir string) (*os.File, *attributes, error) {
	file, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, nil, err
	}
	attrs := &attributes{}
	err = ioctl(file, getAttributes, attrs)
	if err == nil {
		return file, attrs, nil
	}
	_ = file.Close()
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil, nil
	}
	return nil, nil, fmt.Errorf("read project ID of %q: %w", dir, err)
}

func ioctl(file *os.File, request uintptr, attrs *attributes) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), request, uintptr(unsafe.Pointer(attrs)))
	if errno != 0 {
		return errno
	}
	return nil
}

// read returns what the files of a project occupy on the file's file system, and false if that is not counted.
func read(file *os.File, project uint32) (diskusage.Usage, bool, error) {
	var found quota
	const command = uint32(getQuota<<8&0xffffffff | projectQuota)
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, file.Fd(), uintptr(command), uintptr(project), uintptr(unsafe.Pointer(&found)), 0, 0)
	switch errno {
	case 0:
		return diskusage.Usage{Bytes: int64(found.space), Inodes: int64(found.inodes)}, true, nil
	case unix.ESRCH, unix.ENOSYS, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOENT: // no such quota here; no such call before Linux 5.14
		return diskusage.Usage{}, false, nil
	}
	return diskusage.Usage{}, false, errno
}
