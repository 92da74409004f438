package stats

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-dev/berth/internal/pidlimit"
)

// clockTick is the unit of /proc/stat: USER_HZ is 100 on every Linux that Go supports.
const clockTick = uint64(time.Second / 100)

// nodeStats reads the usage of the whole machine.
func (p *Provider) nodeStats(cpuAndMemory bool) (*statsapi.NodeStats, error) {
	stat, err := p.readProc("stat")
	if err != nil {
		return nil, err
	}
	info, err := p.readProc("meminfo")
	if err != nil {
		return nil, err
	}
	now := p.deps.Clock.Now()
	total, usage := info["MemTotal"]<<10, (info["MemTotal"]-min(info["MemFree"], info["MemTotal"]))<<10
	// As the eviction manager, it leaves out what the kernel frees when it is needed.
	working := usage - min((info["Inactive(file)"]+info["SReclaimable"])<<10, usage)
	available, rss := total-min(working, total), info["AnonPages"]<<10
	s := &statsapi.NodeStats{
		NodeName: p.config.NodeName, StartTime: metav1.NewTime(bootTime(stat)),
		CPU: p.cpuWithRate("", stat["cpu"]*clockTick, now), SystemContainers: p.systemContainers(now, cpuAndMemory),
		Memory: &statsapi.MemoryStats{
			Time: metav1.NewTime(now), AvailableBytes: &available, UsageBytes: &usage, WorkingSetBytes: &working, RSSBytes: &rss,
		},
	}
	s.CPU.PSI, s.Memory.PSI = p.pressure("cpu"), p.pressure("memory")
	if faults, err := p.readProc("vmstat"); err == nil {
		all, major := faults["pgfault"], faults["pgmajfault"]
		s.Memory.PageFaults, s.Memory.MajorPageFaults = &all, &major
	}
	swapFree, swapUsed := info["SwapFree"]<<10, (info["SwapTotal"]-min(info["SwapFree"], info["SwapTotal"]))<<10
	s.Swap = &statsapi.SwapStats{Time: metav1.NewTime(now), SwapAvailableBytes: &swapFree, SwapUsageBytes: &swapUsed}
	if cpuAndMemory {
		return s, p.overrideNode(s, now, true)
	}
	if s.Fs, err = fileSystem(p.config.RootDir, now); err != nil {
		return nil, err
	}
	s.Rlimit = p.processStats(now)
	if stall := p.pressure("io"); stall != nil {
		s.IO = &statsapi.IOStats{Time: metav1.NewTime(now), PSI: stall}
	}
	s.Network = p.networkStats(now)
	return s, p.overrideNode(s, now, false)
}

// bootTime returns when the machine was booted, by its /proc/stat. It is bounded by what a time in JSON can be.
func bootTime(stat map[string]uint64) time.Time {
	const latest = 1 << 37 // in the year 6325
	return time.Unix(int64(min(stat["btime"], latest)), 0)
}

// cpuWithRate returns the CPU time of the node, or of the named system container, and its usage since an earlier reading.
func (p *Provider) cpuWithRate(name string, nanos uint64, now time.Time) *statsapi.CPUStats {
	return &statsapi.CPUStats{
		Time: metav1.NewTime(now), UsageCoreNanoSeconds: &nanos, UsageNanoCores: p.nodeRates.observe(name, cpuReading{at: now, nanos: nanos}),
	}
}

// processStats returns the limit and the number of processes. The limit is that by which the eviction manager decides, too.
func (p *Provider) processStats(now time.Time) *statsapi.RlimitStats {
	s := &statsapi.RlimitStats{Time: metav1.NewTime(now)}
	limit, existing := pidlimit.Read(p.config.Proc)
	if limit > 0 {
		s.MaxPID = &limit
	}
	if existing > 0 {
		s.NumOfRunningProcesses = &existing
	}
	return s
}

// readProc parses a file of procfs with a name and numbers in each line. For the line "cpu" of /proc/stat it sums all
// but idle and iowait time; for others it returns the first number.
func (p *Provider) readProc(name string) (map[string]uint64, error) {
	return readTable(filepath.Join(p.config.Proc, name))
}

// readTable is readProc for any path.
func readTable(name string) (map[string]uint64, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read machine usage: %w", err)
	}
	values := map[string]uint64{}
	for line := range strings.Lines(string(data)) { // that of all interrupts may be of any length
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		key := strings.TrimSuffix(fields[0], ":")
		for i, field := range fields[1:] {
			// user nice system idle iowait irq softirq steal; user time includes guest time
			if i > 0 && key != "cpu" || i == 3 || i == 4 || i > 7 {
				continue
			}
			if n, err := strconv.ParseUint(field, 10, 64); err == nil {
				values[key] += n
			}
		}
	}
	return values, nil
}

// fileSystem measures the file system of a directory.
func fileSystem(dir string, now time.Time) (*statsapi.FsStats, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil, fmt.Errorf("measure file system of %q: %w", dir, err)
	}
	size := uint64(fs.Bsize)
	capacity, available, used := fs.Blocks*size, fs.Bavail*size, (fs.Blocks-fs.Bfree)*size
	inodes, free := fs.Files, fs.Ffree
	inodesUsed := inodes - free
	return &statsapi.FsStats{
		Time: metav1.NewTime(now), CapacityBytes: &capacity, AvailableBytes: &available, UsedBytes: &used,
		Inodes: &inodes, InodesFree: &free, InodesUsed: &inodesUsed,
	}, nil
}
