package cadvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/cadvisor/container"
	"github.com/google/cadvisor/container/common"
	"github.com/google/cadvisor/container/libcontainer"
	v1 "github.com/google/cadvisor/info/v1"

	"github.com/berth-dev/berth/kubelet/resources/machine"
)

// root is the name of the cgroup of the whole machine.
const root = "/"

// measured returns what is read of a cgroup.
func measured() container.MetricSet {
	return container.MetricSet{
		container.CpuUsageMetrics: {}, container.MemoryUsageMetrics: {}, container.DiskIOMetrics: {}, container.NetworkUsageMetrics: {},
		container.ProcessMetrics: {}, container.PressureMetrics: {},
	}
}

// info reads the limits and the usage of a cgroup. Its network is that of its first process.
func (l *Local) info(name string, dirs groups) (*v1.ContainerInfo, error) {
	pid := firstProcess(name, dirs)
	paths := map[string]string(dirs)
	if name == root {
		delete(paths, "pids") // the kernel counts them below the root only
	}
	manager, err := libcontainer.NewCgroupManager(name, paths)
	if err != nil {
		return nil, fmt.Errorf("open cgroup %q: %w", name, err)
	}
	spec, err := common.GetSpec(paths, cores(machine.CountCPUs(machine.Config{})), pid > 0, false)
	if err != nil {
		return nil, fmt.Errorf("read limits of cgroup %q: %w", name, err)
	}
	if name == root {
		machine, err := l.MachineInfo()
		if err != nil {
			return nil, err
		}
		spec.HasMemory, spec.Memory.Limit, spec.Memory.SwapLimit = true, machine.MemoryCapacity, machine.SwapCapacity
	}
	if !spec.HasCpu && !spec.HasMemory {
		return nil, fmt.Errorf("cgroup %q: neither its CPU time nor its memory is counted", name)
	}
	stats, err := libcontainer.NewHandler(manager, "/", pid, measured()).GetStats()
	if err != nil {
		return nil, fmt.Errorf("read usage of cgroup %q: %w", name, err)
	}
	stats.Timestamp, stats.OOMEvents = l.clock.Now(), oomKills(dirs)
	return &v1.ContainerInfo{
		ContainerReference: v1.ContainerReference{Name: name}, Spec: spec, Stats: []*v1.ContainerStats{stats},
	}, nil
}

// firstProcess returns the process whose network and limits of files are those of the cgroup, 0 for one without processes of its own.
func firstProcess(name string, dirs groups) int {
	if name == root {
		return os.Getpid() // it is in the network of the machine, and process 1 need not be
	}
	for _, dir := range []string{dirs[""], dirs["memory"], dirs["cpuacct"]} {
		if dir == "" {
			continue
		}
		first, _, _ := strings.Cut(word(filepath.Join(dir, "cgroup.procs")), "\n")
		if pid, err := strconv.Atoi(first); err == nil {
			return pid
		}
	}
	return 0
}

// oomKills returns how many processes of the cgroup the kernel has killed because its memory was used up.
func oomKills(dirs groups) uint64 {
	if dir := dirs[""]; dir != "" {
		return fields(filepath.Join(dir, "memory.events"))["oom_kill"]
	}
	if dir := dirs["memory"]; dir != "" {
		return fields(filepath.Join(dir, "memory.oom_control"))["oom_kill"]
	}
	return 0
}

// fields reads a file of lines "name number".
func fields(path string) map[string]uint64 {
	out := map[string]uint64{}
	for line := range strings.Lines(word(path)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			out[name] = n
		}
	}
	return out
}

// cores is a machine of so many CPUs, which is all that the limits of a cgroup need of it.
type cores int

var _ v1.MachineInfoFactory = cores(0)

// GetMachineInfo implements v1.MachineInfoFactory.
func (c cores) GetMachineInfo() (*v1.MachineInfo, error) {
	return &v1.MachineInfo{NumCores: int(c)}, nil
}

// GetVersionInfo implements v1.MachineInfoFactory.
func (cores) GetVersionInfo() (*v1.VersionInfo, error) { return &v1.VersionInfo{}, nil }
