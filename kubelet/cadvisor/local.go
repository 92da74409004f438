package cadvisor

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/cadvisor/info/v1"
	v2 "github.com/google/cadvisor/info/v2"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/resources/machine"
)

// Local is the machine that this process runs on. It is safe for concurrent use.
type Local struct {
	clock clock.PassiveClock
}

var _ Interface = (*Local)(nil)

// NewLocal returns a Local that takes the time from the clock.
func NewLocal(clock clock.PassiveClock) *Local { return &Local{clock: clock} }

// MachineInfo implements Interface.
func (l *Local) MachineInfo() (*v1.MachineInfo, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return nil, fmt.Errorf("read the machine's memory: %w", err)
	}
	topology, err := machine.Read(machine.Config{})
	if err != nil {
		return nil, err
	}
	cores, sockets := map[int]bool{}, map[int]bool{}
	for _, cpu := range topology.CPUs {
		cores[cpu.Core], sockets[cpu.Socket] = true, true
	}
	return &v1.MachineInfo{
		Timestamp: l.clock.Now(), NumCores: len(topology.CPUs), NumPhysicalCores: len(cores), NumSockets: len(sockets),
		MemoryCapacity: uint64(info.Totalram) * uint64(info.Unit),
		SwapCapacity:   uint64(info.Totalswap) * uint64(info.Unit),
		MachineID:      word("/etc/machine-id"), BootID: word("/proc/sys/kernel/random/boot_id"),
		SystemUUID: word("/sys/class/dmi/id/product_uuid"),
	}, nil
}

// word is a file's content without white space around it, empty if the machine has no such file.
func word(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(content))
}

// ContainerInfo implements Interface.
func (l *Local) ContainerInfo(name string, _ *v1.ContainerInfoRequest) (*v1.ContainerInfo, error) {
	groups, err := find(name)
	if err != nil {
		return nil, err
	}
	return l.info(name, groups)
}

// SubcontainerInfo implements Interface.
func (l *Local) SubcontainerInfo(name string, _ *v1.ContainerInfoRequest) (map[string]*v1.ContainerInfo, error) {
	names, err := below(name)
	if err != nil {
		return nil, err
	}
	all := make(map[string]*v1.ContainerInfo, len(names))
	for _, one := range names {
		info, err := l.ContainerInfo(one, nil)
		switch {
		case err == nil:
			all[one] = info
		case one == name:
			return nil, err
		default:
			// It ends meanwhile, for which the kernel has errors of many kinds, or exists in some of the hierarchies only. What
			// cannot be read of one must not hide the others.
		}
	}
	return all, nil
}

// ContainerInfoV2 implements Interface.
func (l *Local) ContainerInfoV2(name string, options v2.RequestOptions) (map[string]v2.ContainerInfo, error) {
	var all map[string]*v1.ContainerInfo
	one, err := l.ContainerInfo(name, nil)
	if err != nil {
		return nil, err
	}
	if all = map[string]*v1.ContainerInfo{name: one}; options.Recursive {
		if all, err = l.SubcontainerInfo(name, nil); err != nil {
			return nil, err
		}
	}
	out := make(map[string]v2.ContainerInfo, len(all))
	for name, info := range all {
		stats := info.Stats[0]
		out[name] = v2.ContainerInfo{
			Spec:  v2.ContainerSpec{HasCpu: info.Spec.HasCpu, HasMemory: info.Spec.HasMemory},
			Stats: []*v2.ContainerStats{{Timestamp: stats.Timestamp, Cpu: &stats.Cpu, Memory: &stats.Memory}},
		}
	}
	return out, nil
}

// DirFsInfo implements Interface.
func (l *Local) DirFsInfo(path string) (v2.FsInfo, error) {
	var system unix.Statfs_t
	if err := unix.Statfs(path, &system); err != nil {
		return v2.FsInfo{}, fmt.Errorf("measure file system of %q: %w", path, err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return v2.FsInfo{}, fmt.Errorf("find file system of %q: %w", path, err)
	}
	size := uint64(system.Bsize)
	inodes, free := system.Files, system.Ffree
	return v2.FsInfo{
		Timestamp: l.clock.Now(), Mountpoint: path,
		Device:   fmt.Sprintf("%d:%d", unix.Major(uint64(stat.Dev)), unix.Minor(uint64(stat.Dev))),
		Capacity: system.Blocks * size, Available: system.Bavail * size, Usage: (system.Blocks - system.Bfree) * size,
		Inodes: &inodes, InodesFree: &free,
	}, nil
}

// groups are a cgroup's directories, by controller; "" is version 2.
type groups map[string]string

// find finds a cgroup's directories, of the controllers that count what is reported.
func find(name string) (groups, error) {
	if !strings.HasPrefix(name, "/") || filepath.Clean(name) != name {
		return nil, fmt.Errorf("container %q: want the clean path of a cgroup", name)
	}
	hierarchies, err := cm.FindHierarchies()
	if err != nil {
		return nil, err
	}
	found := groups{}
	for _, h := range hierarchies {
		dir := filepath.Join(h.Dir, name)
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if h.Unified && slices.Contains(h.Controllers, "memory") {
			found[""] = dir
		}
		for _, controller := range h.Controllers {
			if !h.Unified && slices.Contains([]string{"cpu", "cpuacct", "memory", "pids", "blkio"}, controller) {
				found[controller] = dir
			}
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("unknown container %q: %w", name, fs.ErrNotExist)
	}
	return found, nil
}

// below lists a cgroup and all below it.
func below(name string) ([]string, error) {
	found, err := find(name)
	if err != nil {
		return nil, err
	}
	top := found[""]
	for _, controller := range []string{"cpuacct", "memory"} {
		if top == "" {
			top = found[controller]
		}
	}
	var names []string
	err = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err != nil && path != top {
			return nil // it has ended meanwhile
		}
		if err == nil && entry.IsDir() {
			names = append(names, filepath.Join(name, strings.TrimPrefix(path, top)))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list cgroups below %q: %w", name, err)
	}
	return names, nil
}
