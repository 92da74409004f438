package agent

import (
	"fmt"

	v1 "github.com/google/cadvisor/info/v1"

	"github.com/berth-dev/berth/kubelet/cadvisor"
	"github.com/berth-dev/berth/kubelet/node"
)

// givenMachine is the machine as the caller's cAdvisor reports it. What cAdvisor does not report is read from the kernel.
type givenMachine struct {
	node.Machine
	given cadvisor.Interface
	dir   string // on the file system whose size is the node's ephemeral storage
}

var _ node.Machine = givenMachine{}

func newMachine(base *base) node.Machine {
	local := node.NewLinuxMachine("/", base.config.RootDir)
	if !base.deps.machineGiven {
		return local
	}
	return givenMachine{Machine: local, given: base.deps.Machine, dir: base.config.RootDir}
}

// Info implements node.Machine.
func (m givenMachine) Info() (node.MachineInfo, error) {
	info, err := m.Machine.Info()
	if err != nil {
		return node.MachineInfo{}, err
	}
	given, err := m.given.MachineInfo()
	if err != nil {
		return node.MachineInfo{}, fmt.Errorf("read the machine's hardware from cAdvisor: %w", err)
	}
	info.Cores, info.Memory, info.Swap = given.NumCores, int64(given.MemoryCapacity), int64(given.SwapCapacity)
	if given.HugePages != nil {
		info.HugePages = hugePages(given.HugePages)
	}
	info.MachineID, info.SystemUUID, info.BootID = given.MachineID, given.SystemUUID, given.BootID
	return info, nil
}

func hugePages(given []v1.HugePagesInfo) map[int64]int64 {
	pages := make(map[int64]int64, len(given))
	for _, one := range given {
		size := int64(one.PageSize) << 10 // of KiB
		pages[size] = int64(one.NumPages) * size
	}
	return pages
}

// Usage implements node.Machine.
func (m givenMachine) Usage() (node.Usage, error) {
	usage, err := m.Machine.Usage()
	if err != nil {
		return node.Usage{}, err
	}
	fs, err := m.given.DirFsInfo(m.dir)
	if err != nil {
		return node.Usage{}, fmt.Errorf("measure file system of %q with cAdvisor: %w", m.dir, err)
	}
	usage.DiskCapacity, usage.DiskFree = int64(fs.Capacity), int64(fs.Available)
	if fs.Inodes != nil && fs.InodesFree != nil {
		usage.InodeCapacity, usage.InodesFree = int64(*fs.Inodes), int64(*fs.InodesFree)
	}
	return usage, nil
}
