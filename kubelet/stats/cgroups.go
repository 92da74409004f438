package stats

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-dev/berth/internal/procstat"
	"github.com/berth-dev/berth/kubelet/cm"
)

// unlimited is the value from which on a cgroup limit means none: cgroup v1 uses a large number for it.
const unlimited = math.MaxInt64 / 2

// measurement is the usage of a cgroup or process. Unknown values are nil.
type measurement struct {
	started  metav1.Time
	nanos    uint64 // of CPU time
	memory   *statsapi.MemoryStats
	swap     *statsapi.SwapStats
	pressure pressures
}

// pressures is how long a cgroup's processes are stalled, nil where the kernel does not measure it.
type pressures struct{ cpu, memory, io *statsapi.PSIStats }

// systemContainers returns the usage of the node's own programs and of all Pods together. What cannot be measured is
// omitted.
func (p *Provider) systemContainers(now time.Time, cpuAndMemory bool) []statsapi.ContainerStats {
	if p.deps.Cgroups == nil {
		return nil
	}
	var layout cm.NodeConfig
	if p.deps.Layout != nil {
		layout = p.deps.Layout()
	}
	var out []statsapi.ContainerStats
	for _, one := range []struct {
		name    string
		measure func() (*measurement, error)
	}{
		{statsapi.SystemContainerKubelet, func() (*measurement, error) {
			return p.measureProgram(layout.KubeletCgroupsName, "self", now)
		}},
		{statsapi.SystemContainerRuntime, func() (*measurement, error) {
			return p.measureProgram(layout.RuntimeCgroupsName, p.runtimeProcess(), now)
		}},
		{statsapi.SystemContainerMisc, func() (*measurement, error) { return p.measureProgram(layout.SystemCgroupsName, "", now) }},
		{statsapi.SystemContainerPods, func() (*measurement, error) {
			dirs, err := p.deps.Cgroups.PodsDirs()
			if err != nil {
				return nil, err
			}
			return measureCgroup(dirs, now)
		}},
	} {
		found, err := one.measure()
		if err != nil {
			p.deps.Logger.Debug("could not measure system container; omitting it", "name", one.name, "error", err)
		}
		if found == nil {
			continue
		}
		s := statsapi.ContainerStats{
			Name: one.name, StartTime: found.started, CPU: p.cpuWithRate(one.name, found.nanos, now), Memory: found.memory,
		}
		s.CPU.PSI = found.pressure.cpu
		if !cpuAndMemory {
			s.Swap = found.swap
			if found.pressure.io != nil {
				s.IO = &statsapi.IOStats{Time: metav1.NewTime(now), PSI: found.pressure.io}
			}
		}
		out = append(out, s)
	}
	return out
}

// measureProgram measures the cgroup of that name or, if group is empty, that of a process, whose directory in procfs
// is given; with neither it returns nil. It has begun with the process, where that is known. If the process's cgroup is not visible, or is the root cgroup and thus the
// whole machine, the process itself is measured; then an error may be returned beside it.
func (p *Provider) measureProgram(group, proc string, now time.Time) (*measurement, error) {
	var process *measurement
	if proc != "" {
		var err error
		if process, err = p.measureProcess(proc, now); err != nil {
			return nil, err
		}
	}
	if group != "" {
		dirs, err := p.deps.Cgroups.CgroupDirs(group)
		if err != nil {
			return nil, err
		}
		found, err := measureCgroup(dirs, now)
		if err == nil && process != nil {
			found.started = process.started
		}
		return found, err
	}
	if process == nil {
		return nil, nil
	}
	dirs, alone, err := p.deps.Cgroups.ProcessDirs(filepath.Join(p.config.Proc, proc, "cgroup"))
	if err != nil || !alone {
		return process, err
	}
	found, err := measureCgroup(dirs, now)
	if err != nil {
		return nil, err
	}
	found.started = process.started
	return found, nil
}

// runtimeProcess returns the container runtime's directory in procfs, "" if its process is unknown.
func (p *Provider) runtimeProcess() string {
	if p.deps.RuntimePID == nil {
		return ""
	}
	pid := p.deps.RuntimePID()
	if pid <= 0 {
		return ""
	}
	return strconv.Itoa(pid)
}

// measureCgroup reads the usage of a cgroup.
func measureCgroup(dirs cm.Dirs, now time.Time) (*measurement, error) {
	if dirs.CPU == "" {
		return nil, errors.New("no cgroup hierarchy accounts CPU time")
	}
	found := &measurement{started: createdAt(dirs.CPU)}
	if dirs.Unified {
		stat, err := readTable(filepath.Join(dirs.CPU, "cpu.stat"))
		if err != nil {
			return nil, err
		}
		found.nanos, found.pressure = stat["usage_usec"]*uint64(time.Microsecond), readPressures(dirs.CPU)
	} else {
		nanos, ok := readNumber(filepath.Join(dirs.CPU, "cpuacct.usage"))
		if !ok {
			return nil, fmt.Errorf("cgroup %q does not report its CPU time", dirs.CPU)
		}
		found.nanos = nanos
	}
	if dirs.Memory != "" {
		found.measureMemory(dirs, now)
	}
	return found, nil
}

// createdAt returns when a cgroup was created: the kernel changes the time of its directory with each cgroup below, and seldom that of these
// files.
func createdAt(dir string) metav1.Time {
	var earliest metav1.Time
	for _, name := range []string{"", "cgroup.events", "cgroup.clone_children", "cgroup.procs"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err == nil && (earliest.IsZero() || info.ModTime().Before(earliest.Time)) {
			earliest = metav1.NewTime(info.ModTime())
		}
	}
	return earliest
}

// memoryFiles are the files and keys of one cgroup version.
type memoryFiles struct{ usage, limit, cache, anonymous, faults, majorFaults string }

var (
	memoryFilesV1 = memoryFiles{"memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file", "total_rss",
		"total_pgfault", "total_pgmajfault"}
	memoryFilesV2 = memoryFiles{"memory.current", "memory.max", "inactive_file", "anon", "pgfault", "pgmajfault"}
)

// measureMemory reads the memory and swap usage of a cgroup.
func (m *measurement) measureMemory(dirs cm.Dirs, now time.Time) {
	files := memoryFilesV1
	if dirs.Unified {
		files = memoryFilesV2
	}
	usage, ok := readNumber(filepath.Join(dirs.Memory, files.usage))
	stat, err := readTable(filepath.Join(dirs.Memory, "memory.stat"))
	if !ok || err != nil {
		return // a cgroup without this controller
	}
	working, rss := usage-min(stat[files.cache], usage), stat[files.anonymous]
	faults, major := stat[files.faults], stat[files.majorFaults]
	m.memory = &statsapi.MemoryStats{
		Time: metav1.NewTime(now), UsageBytes: &usage, WorkingSetBytes: &working, RSSBytes: &rss, PageFaults: &faults,
		MajorPageFaults: &major, PSI: m.pressure.memory,
	}
	if limit, ok := readNumber(filepath.Join(dirs.Memory, files.limit)); ok && limit < unlimited {
		available := limit - min(working, limit)
		m.memory.AvailableBytes = &available
	}
	m.swap = swapOf(dirs, stat, now)
}

// swapOf reads the swap usage of a cgroup whose memory.stat is known; that is needed with cgroup v1 only. It is nil if the kernel does not
// count it.
func swapOf(dirs cm.Dirs, stat map[string]uint64, now time.Time) *statsapi.SwapStats {
	swapped, counted := stat["total_swap"]
	if dirs.Unified {
		swapped, counted = readNumber(filepath.Join(dirs.Memory, "memory.swap.current"))
	}
	if !counted {
		return nil
	}
	swap := &statsapi.SwapStats{Time: metav1.NewTime(now), SwapUsageBytes: &swapped}
	if limit, ok := readNumber(filepath.Join(dirs.Memory, "memory.swap.max")); ok && limit < unlimited {
		available := limit - min(swapped, limit)
		swap.SwapAvailableBytes = &available
	}
	return swap
}

// podDirs returns the directories of a Pod's cgroups, nil if they are not known.
func podDirs(groups Cgroups, pod *corev1.Pod) *cm.Dirs {
	if groups == nil || pod == nil {
		return nil
	}
	dirs, err := groups.PodDirs(pod)
	if err != nil {
		return nil
	}
	return &dirs
}

// addSwap adds the swap usage of a Pod's containers and of the Pod, as far as the runtime does not report it, as containerd does not. ids are
// those of the containers in s. dirs are those of the Pod; without them none is added.
func addSwap(s *statsapi.PodStats, ids []string, dirs *cm.Dirs, now time.Time) {
	for i := range s.Containers {
		c := &s.Containers[i]
		if c.Swap == nil && dirs != nil {
			c.Swap = containerSwapOf(dirs, ids[i], now)
		}
		s.Swap = sumSwap(s.Swap, c.Swap)
	}
}

// containerSwapOf reads the swap usage of a container in a Pod's cgroup.
func containerSwapOf(pod *cm.Dirs, id string, now time.Time) *statsapi.SwapStats {
	for _, name := range cm.ContainerCgroups(id) {
		dirs := cm.Dirs{Unified: pod.Unified, Memory: filepath.Join(pod.Memory, name)}
		var stat map[string]uint64
		if !dirs.Unified {
			var err error
			if stat, err = readTable(filepath.Join(dirs.Memory, "memory.stat")); err != nil {
				continue
			}
		}
		if swap := swapOf(dirs, stat, now); swap != nil {
			return swap
		}
	}
	return nil
}

// measureProcess reads the usage of one process, whose directory in procfs is name.
func (p *Provider) measureProcess(name string, now time.Time) (*measurement, error) {
	data, err := os.ReadFile(filepath.Join(p.config.Proc, name, "stat"))
	if err != nil {
		return nil, fmt.Errorf("measure process: %w", err)
	}
	fields := procstat.Fields(data) // those of proc(5) from the third on
	number := func(field int) uint64 {
		if field-3 >= len(fields) {
			return 0
		}
		n, _ := strconv.ParseUint(fields[field-3], 10, 64)
		return n
	}
	machine, err := p.readProc("stat")
	if err != nil {
		return nil, err
	}
	status, err := p.readProc(filepath.Join(name, "status"))
	if err != nil {
		return nil, err
	}
	const minorFaults, majorFaults, user, system, start = 10, 12, 14, 15, 22
	resident, rss, swapped := status["VmRSS"]<<10, status["RssAnon"]<<10, status["VmSwap"]<<10
	working, major := resident, number(majorFaults)
	faults := number(minorFaults) + major
	return &measurement{
		started: metav1.NewTime(bootTime(machine).Add(time.Duration(number(start) * clockTick))),
		nanos:   (number(user) + number(system)) * clockTick,
		memory: &statsapi.MemoryStats{
			Time: metav1.NewTime(now), UsageBytes: &resident, WorkingSetBytes: &working, RSSBytes: &rss, PageFaults: &faults,
			MajorPageFaults: &major,
		},
		swap: &statsapi.SwapStats{Time: metav1.NewTime(now), SwapUsageBytes: &swapped},
	}, nil
}

// addPodPressure adds pressure statistics that the runtime does not report, from the Pod's cgroup v2.
func (p *Provider) addPodPressure(s *statsapi.PodStats, dirs *cm.Dirs, cpuAndMemory bool) {
	complete := s.CPU != nil && s.CPU.PSI != nil && s.Memory != nil && s.Memory.PSI != nil &&
		(cpuAndMemory || s.IO != nil && s.IO.PSI != nil)
	if complete || dirs == nil || !dirs.Unified {
		return
	}
	pressure := readPressures(dirs.CPU)
	if s.CPU != nil && s.CPU.PSI == nil {
		s.CPU.PSI = pressure.cpu
	}
	if s.Memory != nil && s.Memory.PSI == nil {
		s.Memory.PSI = pressure.memory
	}
	if pressure.io == nil || cpuAndMemory {
		return
	}
	if s.IO == nil {
		s.IO = &statsapi.IOStats{Time: metav1.NewTime(p.deps.Clock.Now())}
	}
	if s.IO.PSI == nil {
		s.IO.PSI = pressure.io
	}
}

// readPressures reads the pressure files of a cgroup v2.
func readPressures(dir string) pressures {
	return pressures{
		cpu: readPressure(filepath.Join(dir, "cpu.pressure")), memory: readPressure(filepath.Join(dir, "memory.pressure")),
		io: readPressure(filepath.Join(dir, "io.pressure")),
	}
}

// readNumber reads a file with one number; "max" is the largest one.
func readNumber(file string) (uint64, bool) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	text := strings.TrimSpace(string(data))
	if text == "max" {
		return math.MaxUint64, true
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}
