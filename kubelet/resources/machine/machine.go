package machine

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/cpulist"
)

// CPU says where one logical CPU is.
type CPU struct {
	// Core is the lowest number of the CPUs that share its physical core, so that it is unique in the machine.
	Core int
	// Socket and Node are the numbers of its package and its NUMA node.
	Socket, Node int
	// Cache is the number of its last-level cache if a NUMA node has several of them; Socket otherwise.
	Cache int
}

// Pages are the huge pages of one size.
type Pages struct {
	// Size is in bytes.
	Size uint64
	// Count is how many pages of the size the kernel has reserved, used or not.
	Count uint64
}

// Node is one NUMA node. Its memory may have no CPUs.
type Node struct {
	ID int
	// Memory is in bytes, with that of huge pages.
	Memory uint64
	// Pages are sorted by size.
	Pages []Pages
	// Distances are those to all nodes of the machine, by their numbers; nil if the kernel does not report them.
	Distances []uint64
}

// Topology is what a machine consists of. It is not changed after it was read.
type Topology struct {
	// CPUs are those that are online.
	CPUs map[int]CPU
	// Nodes are sorted by their numbers; there is at least one.
	Nodes []Node
}

// Config says where the kernel's file systems are mounted.
type Config struct {
	// SysFS and ProcFS are /sys and /proc if empty.
	SysFS, ProcFS string
}

// Read reads the topology. A machine whose kernel reports no NUMA nodes has one with all CPUs and all memory.
func Read(config Config) (*Topology, error) {
	t, err := newReader(config).read()
	if err != nil {
		return nil, fmt.Errorf("read the machine's topology: %w", err)
	}
	return t, nil
}

// CountCPUs returns how many CPUs of the machine are online. Containers may run on all of them, also on those that this process may not: where
// systemd keeps daemons on a few CPUs, it is one of them. If the kernel does not say which are online, those count that this process may use.
func CountCPUs(config Config) int {
	online, err := newReader(config).online()
	if err != nil || online.IsEmpty() {
		return runtime.NumCPU()
	}
	return online.Size()
}

type reader struct{ sys, proc string }

func newReader(config Config) reader {
	return reader{sys: cmp.Or(config.SysFS, "/sys"), proc: cmp.Or(config.ProcFS, "/proc")}
}

func (r reader) online() (cpuset.CPUSet, error) {
	return readSet(filepath.Join(r.sys, "devices/system/cpu/online"))
}

func (r reader) read() (*Topology, error) {
	online, err := r.online()
	if err != nil {
		return nil, err
	}
	t := &Topology{CPUs: map[int]CPU{}}
	nodeOf := map[int]int{}
	if t.Nodes, err = r.nodes(nodeOf); err != nil {
		return nil, err
	}
	sizes := map[int]int{} // how many CPUs that are online each node has
	for _, id := range online.List() {
		sizes[nodeOf[id]]++
	}
	for _, id := range online.List() {
		cpu, err := r.cpu(id, online)
		if err != nil {
			return nil, err
		}
		cpu.Node = nodeOf[id]
		if cpu.Cache, err = r.cache(id, cpu.Socket, sizes[cpu.Node]); err != nil {
			return nil, err
		}
		t.CPUs[id] = cpu
	}
	return t, nil
}

// cpu reads the core and the socket of a CPU. A kernel that does not report them has cores of one CPU on one socket.
func (r reader) cpu(id int, online cpuset.CPUSet) (CPU, error) {
	dir := filepath.Join(r.sys, "devices/system/cpu", "cpu"+strconv.Itoa(id), "topology")
	cpu := CPU{Core: id}
	siblings, err := readSet(filepath.Join(dir, "thread_siblings_list"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cpu, err
	}
	for _, sibling := range siblings.Intersection(online).List() {
		cpu.Core = min(cpu.Core, sibling)
	}
	socket, err := readNumber(filepath.Join(dir, "physical_package_id"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cpu, err
	}
	cpu.Socket = max(int(socket), 0) // some virtual machines report -1
	return cpu, nil
}

// cache returns the number of the CPU's last-level cache, or its socket if all CPUs of the node share it.
func (r reader) cache(id, socket, nodeSize int) (int, error) {
	dirs, err := filepath.Glob(filepath.Join(r.sys, "devices/system/cpu", "cpu"+strconv.Itoa(id), "cache/index[0-9]*"))
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		level, err := readNumber(filepath.Join(dir, "level"))
		if err != nil || level < 3 {
			continue
		}
		shared, err := readSet(filepath.Join(dir, "shared_cpu_list"))
		if err != nil || shared.Size() >= nodeSize {
			continue
		}
		if number, err := readNumber(filepath.Join(dir, "id")); err == nil {
			return int(number), nil
		}
	}
	return socket, nil
}

// nodes reads the NUMA nodes, and in which of them the CPUs are.
func (r reader) nodes(nodeOf map[int]int) ([]Node, error) {
	dirs, err := filepath.Glob(filepath.Join(r.sys, "devices/system/node/node[0-9]*"))
	if err != nil {
		return nil, err
	}
	var nodes []Node
	for _, dir := range dirs {
		id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
		if err != nil {
			continue
		}
		cpus, err := readSet(filepath.Join(dir, "cpulist"))
		if err != nil {
			return nil, err
		}
		for _, cpu := range cpus.List() {
			nodeOf[cpu] = id
		}
		node := Node{ID: id}
		if node.Memory, err = readMemory(filepath.Join(dir, "meminfo")); err != nil {
			return nil, err
		}
		if node.Pages, err = readPages(filepath.Join(dir, "hugepages")); err != nil {
			return nil, err
		}
		if node.Distances, err = readDistances(filepath.Join(dir, "distance")); err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	if len(nodes) == 0 {
		return r.onlyNode()
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	return nodes, nil
}

// onlyNode returns the node of a machine whose kernel has no NUMA nodes.
func (r reader) onlyNode() ([]Node, error) {
	memory, err := readMemory(filepath.Join(r.proc, "meminfo"))
	if err != nil {
		return nil, err
	}
	pages, err := readPages(filepath.Join(r.sys, "kernel/mm/hugepages"))
	return []Node{{Memory: memory, Pages: pages}}, err
}

// Sockets returns how many packages have CPUs.
func (t *Topology) Sockets() int { return t.count(func(c CPU) int { return c.Socket }) }

// Cores returns how many physical cores there are.
func (t *Topology) Cores() int { return t.count(func(c CPU) int { return c.Core }) }

// Caches returns how many last-level caches there are, by CPU.Cache.
func (t *Topology) Caches() int { return t.count(func(c CPU) int { return c.Cache }) }

// CPUNodes returns the numbers of the NUMA nodes that have CPUs.
func (t *Topology) CPUNodes() cpuset.CPUSet {
	var ids []int
	for _, c := range t.CPUs {
		ids = append(ids, c.Node)
	}
	return cpuset.New(ids...)
}

func (t *Topology) count(of func(CPU) int) int {
	seen := map[int]bool{}
	for _, c := range t.CPUs {
		seen[of(c)] = true
	}
	return len(seen)
}

// All returns the CPUs of the machine.
func (t *Topology) All() cpuset.CPUSet { return t.Select(func(CPU) bool { return true }) }

// InNodes returns the CPUs of the NUMA nodes.
func (t *Topology) InNodes(nodes ...int) cpuset.CPUSet {
	return t.Select(func(c CPU) bool { return slices.Contains(nodes, c.Node) })
}

// CoresOf returns all CPUs of the cores that the CPUs belong to.
func (t *Topology) CoresOf(cpus cpuset.CPUSet) cpuset.CPUSet {
	cores := map[int]bool{}
	for _, id := range cpus.UnsortedList() {
		if c, ok := t.CPUs[id]; ok {
			cores[c.Core] = true
		}
	}
	return t.Select(func(c CPU) bool { return cores[c.Core] })
}

// Select returns the CPUs for which the function returns true.
func (t *Topology) Select(want func(CPU) bool) cpuset.CPUSet {
	var ids []int
	for id, c := range t.CPUs {
		if want(c) {
			ids = append(ids, id)
		}
	}
	return cpuset.New(ids...)
}

// ThreadsPerCore returns how many CPUs a core has, rounded down where the cores differ.
func (t *Topology) ThreadsPerCore() int {
	if cores := t.Cores(); cores > 0 {
		return len(t.CPUs) / cores
	}
	return 1
}

// NodeIDs returns the numbers of all NUMA nodes, sorted.
func (t *Topology) NodeIDs() []int {
	ids := make([]int, 0, len(t.Nodes))
	for _, n := range t.Nodes {
		ids = append(ids, n.ID)
	}
	return ids
}

func readSet(path string) (cpuset.CPUSet, error) {
	text, err := readText(path)
	if err != nil {
		return cpuset.New(), err
	}
	set, err := cpulist.Parse(text)
	if err != nil {
		return cpuset.New(), fmt.Errorf("read %s: %w", path, err)
	}
	return set, nil
}

func readNumber(path string) (int64, error) {
	text, err := readText(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return n, nil
}

func readText(path string) (string, error) {
	data, err := os.ReadFile(path)
	return strings.TrimSpace(string(data)), err
}

// readMemory returns MemTotal of a meminfo file, in bytes.
func readMemory(path string) (uint64, error) {
	text, err := readText(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		_, rest, found := strings.Cut(line, "MemTotal:")
		if !found {
			continue
		}
		kilobytes, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read MemTotal of %s: %w", path, err)
		}
		return kilobytes * 1024, nil
	}
	return 0, fmt.Errorf("read %s: it has no MemTotal", path)
}

// readPages returns the huge pages of a directory hugepages; none if it does not exist.
func readPages(dir string) ([]Pages, error) {
	found, err := filepath.Glob(filepath.Join(dir, "hugepages-*kB"))
	if err != nil {
		return nil, err
	}
	var pages []Pages
	for _, path := range found {
		text := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "hugepages-"), "kB")
		size, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			continue
		}
		count, err := readNumber(filepath.Join(path, "nr_hugepages"))
		if err != nil {
			return nil, err
		}
		if count < 0 {
			return nil, fmt.Errorf("read %s: %d huge pages", path, count)
		}
		pages = append(pages, Pages{Size: size * 1024, Count: uint64(count)})
	}
	slices.SortFunc(pages, func(a, b Pages) int { return cmp.Compare(a.Size, b.Size) })
	return pages, nil
}

func readDistances(path string) ([]uint64, error) {
	text, err := readText(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var distances []uint64
	for field := range strings.FieldsSeq(text) {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		distances = append(distances, n)
	}
	return distances, nil
}
