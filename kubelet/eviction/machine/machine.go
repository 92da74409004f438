package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/eviction"
	"github.com/berth-dev/berth/kubelet/node"
)

// Runtime is the part of the CRI that names the file systems.
type Runtime interface {
	ImageFsInfo(ctx context.Context, in *runtimeapi.ImageFsInfoRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ImageFsInfoResponse, error)
}

// Deps holds what a Machine needs. All are required.
type Deps struct {
	// Node measures memory, the file system of RootDir, and process IDs.
	Node    node.Machine
	Runtime Runtime
	// PodsCgroup returns the directories of the cgroup of all Pods.
	PodsCgroup func() (cm.Dirs, error)
	// RootDir is the kubelet's directory.
	RootDir string
	Clock   clock.PassiveClock
}

// Machine implements eviction.Machine.
type Machine struct {
	deps   Deps
	events *kernelEvents
	// memoryRoot is the topmost cgroup of memory with cgroup v1, or "".
	memoryRoot string

	memory int64 // the machine's; read once, by the goroutine that observes

	mu    sync.Mutex // guards disks
	disks *disks     // nil until the container runtime has named them
}

var _ eviction.Machine = (*Machine)(nil)

// disks are directories on the file systems of images and writable layers.
type disks struct {
	images, containers string
	layout             eviction.Layout
}

// New returns a Machine.
func New(deps Deps) (*Machine, error) {
	if deps.Node == nil || deps.Runtime == nil || deps.PodsCgroup == nil || deps.RootDir == "" || deps.Clock == nil {
		return nil, errors.New("machine: Deps.Node, Runtime, PodsCgroup, RootDir and Clock are required")
	}
	return &Machine{deps: deps, events: newKernelEvents(), memoryRoot: findMemoryRoot()}, nil
}

// Observe implements eviction.Machine.
func (m *Machine) Observe(ctx context.Context) (eviction.Observations, eviction.Layout, error) {
	now := m.deps.Clock.Now()
	out := eviction.Observations{}
	set := func(signal eviction.Signal, available, capacity int64) {
		if capacity > 0 { // file systems such as btrfs have no number of inodes
			out[signal] = eviction.Observation{Available: available, Capacity: capacity, At: now}
		}
	}
	if m.memory == 0 {
		info, err := m.deps.Node.Info()
		if err != nil {
			return nil, m.layout(), err
		}
		m.memory = info.Memory
	}
	usage, err := m.deps.Node.Usage()
	if err != nil {
		return nil, m.layout(), err
	}
	set(eviction.NodeFsAvailable, usage.DiskFree, usage.DiskCapacity)
	set(eviction.NodeFsInodesFree, usage.InodesFree, usage.InodeCapacity)
	set(eviction.PIDAvailable, usage.PIDCapacity-usage.PIDs, usage.PIDCapacity)
	errs := []error{m.observeMemory(usage.MemoryAvailable, set), m.observePods(set)}
	found, err := m.findDisks(ctx)
	if err != nil {
		return out, eviction.Layout{}, errors.Join(append(errs, err)...)
	}
	errs = append(errs,
		observeDisk(found.images, eviction.ImageFsAvailable, eviction.ImageFsInodesFree, set),
		observeDisk(found.containers, eviction.ContainerFsAvailable, eviction.ContainerFsInodesFree, set))
	return out, found.layout, errors.Join(errs...)
}

// observeMemory measures the machine's memory less its working set, as Kubernetes defines it: with cgroup v1 the root cgroup's, to
// which the kernel does not count its own memory. The root of cgroup v2 has no such files; there it is what the machine's say.
func (m *Machine) observeMemory(machine int64, set func(eviction.Signal, int64, int64)) error {
	if m.memoryRoot == "" {
		set(eviction.MemoryAvailable, machine, m.memory)
		return nil
	}
	usage, err := readNumber(filepath.Join(m.memoryRoot, "memory.usage_in_bytes"))
	if err != nil {
		return err
	}
	cache, err := readKey(filepath.Join(m.memoryRoot, "memory.stat"), "total_inactive_file")
	if err != nil {
		return err
	}
	set(eviction.MemoryAvailable, max(m.memory-max(usage-cache, 0), 0), m.memory)
	return nil
}

// Free returns the free space of the disks that Pods write to, and whether writable layers are on that of the kubelet's directory.
func (m *Machine) Free(ctx context.Context) (bytes int64, layersHere bool, err error) {
	// A runtime that does not name its file systems is taken to be on that of the kubelet's directory.
	found, err := m.findDisks(ctx)
	layersHere = err != nil || !found.layout.Images || found.layout.Containers
	dirs := []string{m.deps.RootDir}
	if !layersHere {
		dirs = append(dirs, found.containers)
	}
	for _, dir := range dirs {
		if err := observeDisk(dir, eviction.NodeFsAvailable, eviction.NodeFsInodesFree, func(signal eviction.Signal, available, _ int64) {
			if signal == eviction.NodeFsAvailable {
				bytes += available
			}
		}); err != nil {
			return 0, false, err
		}
	}
	return bytes, layersHere, nil
}

// observePods measures the memory below the limit of all Pods. Without a limit, or a cgroup, there is nothing to measure.
func (m *Machine) observePods(set func(eviction.Signal, int64, int64)) error {
	dirs, err := m.deps.PodsCgroup()
	if err != nil || dirs.Memory == "" {
		return err
	}
	limitFile, usageFile, cacheKey := "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
	if dirs.Unified {
		limitFile, usageFile, cacheKey = "memory.max", "memory.current", "inactive_file"
	}
	limit, err := readNumber(filepath.Join(dirs.Memory, limitFile))
	if err != nil || limit > m.memory {
		return ignoreMissing(err) // no limit
	}
	usage, err := readNumber(filepath.Join(dirs.Memory, usageFile))
	if err != nil {
		return ignoreMissing(err)
	}
	cache, err := readKey(filepath.Join(dirs.Memory, "memory.stat"), cacheKey)
	if err != nil {
		return ignoreMissing(err)
	}
	set(eviction.AllocatableMemoryAvailable, limit-max(usage-cache, 0), limit)
	return nil
}

// layout returns the layout as far as it is known.
func (m *Machine) layout() eviction.Layout {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.disks == nil {
		return eviction.Layout{}
	}
	return m.disks.layout
}

// findDisks returns where images and writable layers are. It is asked of the runtime until it has said so once.
func (m *Machine) findDisks(ctx context.Context) (*disks, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.disks != nil {
		return m.disks, nil
	}
	resp, err := m.deps.Runtime.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("find the file system of images: %w", err)
	}
	if len(resp.ImageFilesystems) == 0 {
		return nil, errors.New("find the file system of images: the container runtime names none")
	}
	found := disks{images: resp.ImageFilesystems[0].GetFsId().GetMountpoint()}
	found.containers = found.images
	if len(resp.ContainerFilesystems) > 0 {
		found.containers = resp.ContainerFilesystems[0].GetFsId().GetMountpoint()
	}
	sameImages, err := sameDisk(m.deps.RootDir, found.images)
	if err != nil {
		return nil, err
	}
	sameContainers, err := sameDisk(found.images, found.containers)
	if err != nil {
		return nil, err
	}
	found.layout = eviction.Layout{Images: !sameImages, Containers: !sameImages && !sameContainers}
	m.disks = &found
	return m.disks, nil
}

// sameDisk reports whether two directories are on one file system. The subvolumes of btrfs have device numbers of their own, but
// share the space.
func sameDisk(a, b string) (bool, error) {
	var stats [2]unix.Stat_t
	var systems [2]unix.Statfs_t
	for i, dir := range []string{a, b} {
		if err := unix.Stat(dir, &stats[i]); err != nil {
			return false, fmt.Errorf("find the file system of %q: %w", dir, err)
		}
		if err := unix.Statfs(dir, &systems[i]); err != nil {
			return false, fmt.Errorf("find the file system of %q: %w", dir, err)
		}
	}
	if stats[0].Dev == stats[1].Dev {
		return true, nil
	}
	return systems[0].Type == unix.BTRFS_SUPER_MAGIC && systems[1].Type == unix.BTRFS_SUPER_MAGIC && systems[0].Blocks == systems[1].Blocks, nil
}

// observeDisk measures the file system of a directory.
func observeDisk(dir string, bytes, inodes eviction.Signal, set func(eviction.Signal, int64, int64)) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("measure the file system of %q: %w", dir, err)
	}
	set(bytes, int64(fs.Bavail)*fs.Bsize, int64(fs.Blocks)*fs.Bsize)
	set(inodes, int64(fs.Ffree), int64(fs.Files))
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// unlimited is what "max" is read as.
const unlimited = 1<<63 - 1

// readNumber reads a file with one number.
func readNumber(file string) (int64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("measure memory: %w", err)
	}
	return parse(file, strings.TrimSpace(string(data)))
}

// readKey reads the number behind a name at the start of a line.
func readKey(file, key string) (int64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, fmt.Errorf("measure memory: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == key {
			return parse(file, value)
		}
	}
	return 0, fmt.Errorf("measure memory: %q has no line %q", file, key)
}

func parse(file, text string) (int64, error) {
	if text == "max" {
		return unlimited, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("measure memory: read %q: %w", file, err)
	}
	return int64(min(n, unlimited)), nil
}
