package stats

import (
	"fmt"
	"time"

	v1 "github.com/google/cadvisor/info/v1"
	v2 "github.com/google/cadvisor/info/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Machine measures cgroups and file systems. cadvisor.Interface has it.
type Machine interface {
	MachineInfo() (*v1.MachineInfo, error)
	ContainerInfoV2(name string, options v2.RequestOptions) (map[string]v2.ContainerInfo, error)
	DirFsInfo(path string) (v2.FsInfo, error)
}

// overrideNode replaces what Deps.Machine, if it is set, knows of the node: CPU, memory, network and file system.
func (p *Provider) overrideNode(s *statsapi.NodeStats, now time.Time, cpuAndMemory bool) error {
	if p.deps.Machine == nil {
		return nil
	}
	const whole = "/"
	found, err := p.latest(whole)
	if err != nil {
		return err
	}
	info, err := p.deps.Machine.MachineInfo()
	if err != nil {
		return fmt.Errorf("read the machine's memory: %w", err)
	}
	apply(found, s.CPU, s.Memory)
	if found.Memory != nil {
		available := info.MemoryCapacity - min(found.Memory.WorkingSet, info.MemoryCapacity)
		s.Memory.AvailableBytes = &available
	}
	if cpuAndMemory {
		return nil
	}
	if found.Network != nil {
		s.Network = convertNetwork(found, p.defaultInterface())
	}
	fs, err := p.deps.Machine.DirFsInfo(p.config.RootDir)
	if err != nil {
		return fmt.Errorf("measure file system of %q: %w", p.config.RootDir, err)
	}
	s.Fs = &statsapi.FsStats{
		Time: metav1.NewTime(now), CapacityBytes: &fs.Capacity, AvailableBytes: &fs.Available, UsedBytes: &fs.Usage,
		Inodes: fs.Inodes, InodesFree: fs.InodesFree,
	}
	if fs.Inodes != nil && fs.InodesFree != nil {
		used := *fs.Inodes - min(*fs.InodesFree, *fs.Inodes)
		s.Fs.InodesUsed = &used
	}
	return nil
}

// latest returns the newest measurement of a cgroup.
func (p *Provider) latest(name string) (*v2.ContainerStats, error) {
	all, err := p.deps.Machine.ContainerInfoV2(name, v2.RequestOptions{IdType: v2.TypeName, Count: 2})
	if err != nil {
		return nil, fmt.Errorf("measure cgroup %q: %w", name, err)
	}
	info, ok := all[name]
	if !ok || len(info.Stats) == 0 {
		return nil, fmt.Errorf("measure cgroup %q: there is no measurement yet", name)
	}
	return info.Stats[len(info.Stats)-1], nil
}

// apply replaces the usage of CPU and memory by a measurement.
func apply(found *v2.ContainerStats, cpu *statsapi.CPUStats, memory *statsapi.MemoryStats) {
	at := metav1.NewTime(found.Timestamp)
	if found.Cpu != nil {
		cpu.Time, cpu.UsageCoreNanoSeconds = at, &found.Cpu.Usage.Total
		if found.CpuInst != nil {
			cpu.UsageNanoCores = &found.CpuInst.Usage.Total
		}
	}
	if m := found.Memory; m != nil {
		memory.Time, memory.UsageBytes, memory.WorkingSetBytes, memory.RSSBytes = at, &m.Usage, &m.WorkingSet, &m.RSS
		memory.PageFaults, memory.MajorPageFaults = &m.ContainerData.Pgfault, &m.ContainerData.Pgmajfault
	}
}

func convertNetwork(found *v2.ContainerStats, defaultInterface string) *statsapi.NetworkStats {
	out := &statsapi.NetworkStats{Time: metav1.NewTime(found.Timestamp)}
	for i := range found.Network.Interfaces {
		in := &found.Network.Interfaces[i]
		one := statsapi.InterfaceStats{
			Name: in.Name, RxBytes: &in.RxBytes, RxErrors: &in.RxErrors, TxBytes: &in.TxBytes, TxErrors: &in.TxErrors,
		}
		if in.Name == defaultInterface {
			out.InterfaceStats = one
		}
		out.Interfaces = append(out.Interfaces, one)
	}
	return out
}
