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

	"github.com/berth-dev/berth/kubelet/cm"
)

// unlimited is what a limit is not below that is none: version 1 words it as a large number.
const unlimited = math.MaxInt64 / 2

// measurement is what a control group, or a process, was found to use. What is not known is nil.
type measurement struct {
	started metav1.Time
	nanos   uint64 // of CPU time
	memory  *statsapi.MemoryStats
	swap    *statsapi.SwapStats
	waiting pressures
}

// pressures is how much the processes of a control group wait, nil where the kernel does not count it.
type pressures struct{ cpu, memory, io *statsapi.PSIStats }

// systemContainers are what the node's own programs, and all Pods together, use. What cannot be found is left out.
func (p *Provider) systemContainers(now time.Time, cpuAndMemory bool) []statsapi.ContainerStats {
	if p.deps.Groups == nil {
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
			return p.program(layout.KubeletCgroupsName, "self", now)
		}},
		{statsapi.SystemContainerRuntime, func() (*measurement, error) {
			return p.program(layout.RuntimeCgroupsName, p.runtimeProcess(), now)
		}},
		{statsapi.SystemContainerMisc, func() (*measurement, error) { return p.program(layout.SystemCgroupsName, "", now) }},
		{statsapi.SystemContainerPods, func() (*measurement, error) {
			dirs, err := p.deps.Groups.PodsDirs()
			if err != nil {
				return nil, err
			}
			return measureGroup(dirs, now)
		}},
	} {
		found, err := one.measure()
		if err != nil {
			p.deps.Logger.Debug("a system container is left out", "name", one.name, "error", err)
		}
		if found == nil {
			continue
		}
		s := statsapi.ContainerStats{
			Name: one.name, StartTime: found.started, CPU: p.measuredCPU(one.name, found.nanos, now), Memory: found.memory,
		}
		s.CPU.PSI = found.waiting.cpu
		if !cpuAndMemory {
			s.Swap = found.swap
			if found.waiting.io != nil {
				s.IO = &statsapi.IOStats{Time: metav1.NewTime(now), PSI: found.waiting.io}
			}
		}
		out = append(out, s)
	}
	return out
}

// program measures the group of that name, or, without a name, that of a process, whose directory below procfs is given.
// With neither there is nothing to measure. A process whose group cannot be seen from here, or is the root group, which is
// the whole machine, is measured itself; an error may come with that.
func (p *Provider) program(group, process string, now time.Time) (*measurement, error) {
	if group != "" {
		dirs, err := p.deps.Groups.CgroupDirs(group)
		if err != nil {
			return nil, err
		}
		return measureGroup(dirs, now)
	}
	if process == "" {
		return nil, nil
	}
	itself, err := p.measureProcess(process, now)
	if err != nil {
		return nil, err
	}
	dirs, alone, err := p.deps.Groups.ProcessDirs(filepath.Join(p.cfg.Proc, process, "cgroup"))
	if err != nil || !alone {
		return itself, err
	}
	found, err := measureGroup(dirs, now)
	if err != nil {
		return nil, err
	}
	found.started = itself.started
	return found, nil
}

// runtimeProcess is the container runtime's directory below procfs, empty if nobody knows its process.
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

// measureGroup reads what the kernel tells of a group.
func measureGroup(dirs cm.Dirs, now time.Time) (*measurement, error) {
	if dirs.CPU == "" {
		return nil, errors.New("no hierarchy of control groups counts CPU time")
	}
	found := &measurement{}
	if dirs.Unified {
		stat, err := readTable(filepath.Join(dirs.CPU, "cpu.stat"))
		if err != nil {
			return nil, err
		}
		found.nanos, found.waiting = stat["usage_usec"]*uint64(time.Microsecond), readPressures(dirs.CPU)
	} else {
		nanos, ok := readNumber(filepath.Join(dirs.CPU, "cpuacct.usage"))
		if !ok {
			return nil, fmt.Errorf("control group %q does not tell its CPU time", dirs.CPU)
		}
		found.nanos = nanos
	}
	if dirs.Memory != "" {
		found.measureMemory(dirs, now)
	}
	return found, nil
}

// memoryFiles are the files and keys of one version of control groups.
type memoryFiles struct{ usage, limit, cache, anonymous, faults, majorFaults string }

var (
	legacyMemory = memoryFiles{"memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file", "total_rss",
		"total_pgfault", "total_pgmajfault"}
	unifiedMemory = memoryFiles{"memory.current", "memory.max", "inactive_file", "anon", "pgfault", "pgmajfault"}
)

// measureMemory reads what the kernel tells of a group's memory and swap.
func (m *measurement) measureMemory(dirs cm.Dirs, now time.Time) {
	files := legacyMemory
	if dirs.Unified {
		files = unifiedMemory
	}
	usage, ok := readNumber(filepath.Join(dirs.Memory, files.usage))
	stat, err := readTable(filepath.Join(dirs.Memory, "memory.stat"))
	if !ok || err != nil {
		return // a group without this controller
	}
	working, rss := usage-min(stat[files.cache], usage), stat[files.anonymous]
	faults, major := stat[files.faults], stat[files.majorFaults]
	m.memory = &statsapi.MemoryStats{
		Time: metav1.NewTime(now), UsageBytes: &usage, WorkingSetBytes: &working, RSSBytes: &rss, PageFaults: &faults,
		MajorPageFaults: &major, PSI: m.waiting.memory,
	}
	if limit, ok := readNumber(filepath.Join(dirs.Memory, files.limit)); ok && limit < unlimited {
		available := limit - min(working, limit)
		m.memory.AvailableBytes = &available
	}
	swapped, counted := stat["total_swap"]
	if dirs.Unified {
		swapped, counted = readNumber(filepath.Join(dirs.Memory, "memory.swap.current"))
	}
	if !counted {
		return
	}
	m.swap = &statsapi.SwapStats{Time: metav1.NewTime(now), SwapUsageBytes: &swapped}
	if limit, ok := readNumber(filepath.Join(dirs.Memory, "memory.swap.max")); ok && limit < unlimited {
		available := limit - min(swapped, limit)
		m.swap.SwapAvailableBytes = &available
	}
}

// measureProcess reads what the kernel tells of one process, whose directory below procfs is name.
func (p *Provider) measureProcess(name string, now time.Time) (*measurement, error) {
	data, err := os.ReadFile(filepath.Join(p.cfg.Proc, name, "stat"))
	if err != nil {
		return nil, fmt.Errorf("measure a process: %w", err)
	}
	// The name of the program, in brackets, may have anything in it. What follows are proc(5)'s fields from the third on.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	number := func(field int) uint64 {
		if field-3 >= len(fields) {
			return 0
		}
		n, _ := strconv.ParseUint(fields[field-3], 10, 64)
		return n
	}
	machine, err := p.table("stat")
	if err != nil {
		return nil, err
	}
	held, err := p.table(filepath.Join(name, "status"))
	if err != nil {
		return nil, err
	}
	const minorFaults, majorFaults, user, system, start = 10, 12, 14, 15, 22
	resident, rss, swapped := held["VmRSS"]<<10, held["RssAnon"]<<10, held["VmSwap"]<<10
	working, major := resident, number(majorFaults)
	faults := number(minorFaults) + major
	return &measurement{
		started: metav1.NewTime(time.Unix(int64(machine["btime"]), int64(number(start)*tick))),
		nanos:   (number(user) + number(system)) * tick,
		memory: &statsapi.MemoryStats{
			Time: metav1.NewTime(now), UsageBytes: &resident, WorkingSetBytes: &working, RSSBytes: &rss, PageFaults: &faults,
			MajorPageFaults: &major,
		},
		swap: &statsapi.SwapStats{Time: metav1.NewTime(now), SwapUsageBytes: &swapped},
	}, nil
}

// podPressure tells how much a Pod's processes wait where the runtime does not: version 2 of control groups counts it.
func (p *Provider) podPressure(s *statsapi.PodStats, pod *corev1.Pod, cpuAndMemory bool) {
	told := s.CPU != nil && s.CPU.PSI != nil && s.Memory != nil && s.Memory.PSI != nil &&
		(cpuAndMemory || s.IO != nil && s.IO.PSI != nil)
	if told || pod == nil || p.deps.Groups == nil {
		return
	}
	dirs, err := p.deps.Groups.PodDirs(pod)
	if err != nil || !dirs.Unified {
		return
	}
	waiting := readPressures(dirs.CPU)
	if s.CPU != nil && s.CPU.PSI == nil {
		s.CPU.PSI = waiting.cpu
	}
	if s.Memory != nil && s.Memory.PSI == nil {
		s.Memory.PSI = waiting.memory
	}
	if waiting.io == nil || cpuAndMemory {
		return
	}
	if s.IO == nil {
		s.IO = &statsapi.IOStats{Time: metav1.NewTime(p.deps.Clock.Now())}
	}
	if s.IO.PSI == nil {
		s.IO.PSI = waiting.io
	}
}

// readPressures reads what a group of version 2 tells.
func readPressures(dir string) pressures {
	return pressures{
		cpu: readPressure(filepath.Join(dir, "cpu.pressure")), memory: readPressure(filepath.Join(dir, "memory.pressure")),
		io: readPressure(filepath.Join(dir, "io.pressure")),
	}
}

// readNumber reads a file of one number; "max" is as much as there can be.
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
