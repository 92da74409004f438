package local

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's interface to project quotas (linux/quota.h, linux/fs.h), as far as it is used here.
const (
	projectQuota  = 2      // PRJQUOTA
	cmdGetState   = 0x5805 // Q_XGETQSTAT
	cmdGetQuota   = 0x800007
	cmdSetQuota   = 0x800008
	getAttributes = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributes = 0x401c5820 // FS_IOC_FSSETXATTR
	limitsValid   = 1          // QIF_BLIMITS
	quotaBlock    = 1024       // unit of limits, bytes
	inheritFlag   = 0x200      // FS_XFLAG_PROJINHERIT
	firstProject  = 0x42e000   // projects from here on are ours by convention
	projectsTried = 4096
)

// quotaState is struct fs_quota_stat, of which only the flags matter.
type quotaState struct {
	_     [2]byte
	flags uint16
	_     [124]byte // 76 are used
}

// projectEnforced is FS_QUOTA_PDQ_ENFD: the usage of projects is not only counted but limited.
const projectEnforced = 1 << 5

// quotaLimits is struct if_dqblk.
type quotaLimits struct {
	blockHard, blockSoft, space  uint64
	inodeHard, inodeSoft, inodes uint64
	blockTime, inodeTime         uint64
	valid, _                     uint32
}

// fileAttributes is struct fsxattr.
type fileAttributes struct {
	flags, extentSize, extents, project, cowExtentSize uint32
	_                                                  [8]byte
}

func quotactl(file *os.File, command, id uint32, data unsafe.Pointer) error {
	const shift = 8
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, file.Fd(),
		uintptr(command<<shift|projectQuota), uintptr(id), uintptr(data), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func attributes(file *os.File, request uint, a *fileAttributes) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), uintptr(request), uintptr(unsafe.Pointer(a)))
	if errno != 0 {
		return errno
	}
	return nil
}

// projectsEnforced returns why the file system of the directory does not limit projects; nil if it does.
func projectsEnforced(dir *os.File) error {
	var state quotaState
	if err := quotactl(dir, cmdGetState, 0, unsafe.Pointer(&state)); err != nil {
		return fmt.Errorf("the filesystem of %q has no project quota: %w", dir.Name(), err)
	}
	if state.flags&projectEnforced == 0 {
		return fmt.Errorf("the filesystem of %q is not mounted with prjquota", dir.Name())
	}
	return nil
}

// limit enforces the size of the directory's content. If the file system does not support that, it returns the reason; err is
// for a file system that does, and failed.
func (t *volumeStore) limit(dir *os.File, name string, size int64) (reason, err error) {
	if reason := projectsEnforced(dir); reason != nil {
		return reason, nil
	}
	var have fileAttributes
	if err := attributes(dir, getAttributes, &have); err != nil {
		return fmt.Errorf("the filesystem of %q has no projects: %w", t.root, err), nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if have.project == 0 {
		id, err := freeProject(dir, name)
		if err != nil {
			return nil, err
		}
		// The ID comes before its limit: the directory itself marks it as used from then on, and a crash in between leaves no limit
		// of an ID that no directory has.
		have.project = id
		have.flags |= inheritFlag
		if err := attributes(dir, setAttributes, &have); err != nil {
			return nil, fmt.Errorf("set project %d of %q: %w", id, dir.Name(), err)
		}
	}
	return nil, setLimit(dir, have.project, size)
}

// freeProject finds an unused project ID, starting at one derived from the volume's name.
func freeProject(dir *os.File, name string) (uint32, error) {
	sum := fnv.New32a()
	sum.Write([]byte(name))
	const span = 1 << 20
	for i := range uint32(projectsTried) {
		id := firstProject + (sum.Sum32()+i)%span
		var have quotaLimits
		err := quotactl(dir, cmdGetQuota, id, unsafe.Pointer(&have))
		if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) ||
			err == nil && have.blockHard == 0 && have.space == 0 && have.inodes == 0 {
			return id, nil
		}
		if err != nil {
			return 0, fmt.Errorf("read quota of project %d: %w", id, err)
		}
	}
	return 0, fmt.Errorf("no free project ID for volume %q in %d tries", name, projectsTried)
}

// setLimit sets the project's hard limit in bytes; 0 removes it.
func setLimit(file *os.File, project uint32, size int64) error {
	blocks := uint64(size+quotaBlock-1) / quotaBlock
	limits := quotaLimits{blockHard: blocks, blockSoft: blocks, valid: limitsValid}
	if err := quotactl(file, cmdSetQuota, project, unsafe.Pointer(&limits)); err != nil {
		return fmt.Errorf("set quota of project %d: %w", project, err)
	}
	return nil
}

// projectOf returns the directory's project if it is one of ours, else 0.
func projectOf(dir *os.File) uint32 {
	var have fileAttributes
	if err := attributes(dir, getAttributes, &have); err != nil || have.project < firstProject {
		return 0
	}
	return have.project
}

// Enforces returns why the sizes of volumes below root would not be enforced; nil if they would. The directory need not exist yet.
func Enforces(root string) error {
	for {
		dir, err := os.Open(root)
		if errors.Is(err, os.ErrNotExist) && filepath.Dir(root) != root {
			root = filepath.Dir(root)
			continue
		}
		if err != nil {
			return fmt.Errorf("check the quotas of %q: %w", root, err)
		}
		defer dir.Close()
		return projectsEnforced(dir)
	}
}
