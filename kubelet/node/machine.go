package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/pidlimit"
	"github.com/berth-dev/berth/kubelet/resources/machine"
)

// MachineInfo are the properties of the machine that do not change while it runs.
type MachineInfo struct {
	Cores     int
	Memory    int64           // bytes
	Swap      int64           // bytes
	HugePages map[int64]int64 // page size in bytes -> bytes reserved for pages of this size

	MachineID, SystemUUID, BootID string
	Kernel, OSImage               string
}

// Usage is the current usage of the machine.
type Usage struct {
	// MemoryAvailable is the memory, in bytes, that is free or that the kernel frees when it is needed: caches of files that are not
	// in recent use, and its own caches, of names and inodes. It is what the machine has less its working set.
	MemoryAvailable           int64
	DiskCapacity, DiskFree    int64 // bytes of the file system of the kubelet's data
	InodeCapacity, InodesFree int64
	PIDCapacity, PIDs         int64
}

// Machine reads the machine's properties and usage.
type Machine interface {
	Info() (MachineInfo, error)
	Usage() (Usage, error)
}

// LinuxMachine reads procfs, sysfs and a few files under /etc.
type LinuxMachine struct {
	root string
	data string
}

var _ Machine = (*LinuxMachine)(nil)

// NewLinuxMachine returns a LinuxMachine. root is "/" except in tests; data is a directory on the file system whose
// size is the node's ephemeral storage.
func NewLinuxMachine(root, data string) *LinuxMachine { return &LinuxMachine{root: root, data: data} }

// Info implements Machine. Identities that the machine does not have are empty.
func (m *LinuxMachine) Info() (MachineInfo, error) {
	meminfo, err := m.meminfo()
	if err != nil {
		return MachineInfo{}, err
	}
	f := MachineInfo{
		Cores:      machine.CountCPUs(machine.Config{SysFS: filepath.Join(m.root, "sys")}),
		Memory:     meminfo["MemTotal"],
		Swap:       meminfo["SwapTotal"],
		MachineID:  m.readText("etc/machine-id"),
		SystemUUID: m.readText("sys/class/dmi/id/product_uuid"),
		BootID:     m.readText("proc/sys/kernel/random/boot_id"),
		Kernel:     m.readText("proc/sys/kernel/osrelease"),
		OSImage:    m.osImage(),
	}
	if f.SystemUUID == "" {
		f.SystemUUID = f.MachineID
	}
	if f.HugePages, err = m.hugePages(); err != nil {
		return MachineInfo{}, err
	}
	return f, nil
}

// Usage implements Machine.
func (m *LinuxMachine) Usage() (Usage, error) {
	meminfo, err := m.meminfo()
	if err != nil {
		return Usage{}, err
	}
	fs, err := statfs(m.data)
	if err != nil {
		return Usage{}, err
	}
	u := Usage{
		MemoryAvailable: meminfo["MemFree"] + meminfo["Inactive(file)"] + meminfo["SReclaimable"],
		DiskCapacity:    int64(fs.Blocks) * fs.Bsize,
		DiskFree:        int64(fs.Bavail) * fs.Bsize,
		InodeCapacity:   int64(fs.Files),
		InodesFree:      int64(fs.Ffree),
	}
	u.PIDCapacity, u.PIDs = pidlimit.Read(filepath.Join(m.root, "proc"))
	return u, nil
}

// statfs measures the file system of the directory, or of its closest existing parent.
func statfs(dir string) (fs unix.Statfs_t, err error) {
	for at := dir; ; at = filepath.Dir(at) {
		err := unix.Statfs(at, &fs)
		if err == nil {
			return fs, nil
		}
		if !errors.Is(err, unix.ENOENT) || at == filepath.Dir(at) {
			return fs, fmt.Errorf("stat file system of %q: %w", dir, err)
		}
	}
}

// readText returns the trimmed content of a small file, or "" if it cannot be read.
func (m *LinuxMachine) readText(path string) string {
	data, err := os.ReadFile(filepath.Join(m.root, path))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// sizeBits is how many bits a size in kB may have, and maxSize the largest one: the sum of a few of them, in bytes, is an int64.
const (
	sizeBits = 51
	maxSize  = 1<<sizeBits - 1
)

// meminfo parses /proc/meminfo; the values are in bytes.
func (m *LinuxMachine) meminfo() (map[string]int64, error) {
	path := filepath.Join(m.root, "proc/meminfo")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read memory size: %w", err)
	}
	values := make(map[string]int64)
	for line := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		if len(fields) == 2 && fields[1] == "kB" {
			if kb, err := strconv.ParseUint(fields[0], 10, sizeBits); err == nil {
				values[name] = int64(kb << 10)
			}
		}
	}
	if values["MemTotal"] == 0 {
		return nil, fmt.Errorf("read memory size: no MemTotal in %q", path)
	}
	return values, nil
}

// hugePages returns the bytes reserved for huge pages of each size.
func (m *LinuxMachine) hugePages() (map[int64]int64, error) {
	dir := filepath.Join(m.root, "sys/kernel/mm/hugepages")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read huge page sizes: %w", err)
	}
	pages := make(map[int64]int64, len(entries))
	for _, entry := range entries {
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(entry.Name(), "hugepages-"), "kB"), 10, 32)
		if err != nil || kb <= 0 {
			continue
		}
		count, err := strconv.ParseUint(m.readText(filepath.Join("sys/kernel/mm/hugepages", entry.Name(), "nr_hugepages")), 10, sizeBits)
		if err == nil && int64(count) > maxSize/kb {
			err = strconv.ErrRange
		}
		if err != nil {
			return nil, fmt.Errorf("read number of huge pages of %d kB: %w", kb, err)
		}
		pages[kb<<10] = int64(count) * kb << 10
	}
	return pages, nil
}

// osImage returns PRETTY_NAME of os-release.
func (m *LinuxMachine) osImage() string {
	for _, path := range []string{"etc/os-release", "usr/lib/os-release"} {
		for line := range strings.Lines(m.readText(path)) {
			if value, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
				return strings.Trim(strings.TrimSpace(value), `"'`)
			}
		}
	}
	return "Linux"
}
