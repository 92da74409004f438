package cpus

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/kubelet/resources/machine"
)

// Options change which CPUs are chosen. They are those of the field cpuManagerPolicyOptions that Kubernetes has as beta or
// stable.
type Options struct {
	// FullCores gives containers whole cores only (full-pcpus-only).
	FullCores bool
	// Distribute spreads CPUs evenly over NUMA nodes where one node is too small (distribute-cpus-across-numa).
	Distribute bool
	// StrictReservation keeps the reserved CPUs out of the shared pool, too (strict-cpu-reservation).
	StrictReservation bool
	// PreferCache takes CPUs that share a last-level cache (prefer-align-cpus-by-uncorecache).
	PreferCache bool
}

// level is a kind of parts that a machine consists of; it returns the number of the part that a CPU is in.
type level func(machine.CPU) int

func bySocket(c machine.CPU) int { return c.Socket }
func byNode(c machine.CPU) int   { return c.Node }
func byCore(c machine.CPU) int   { return c.Core }
func byCache(c machine.CPU) int  { return c.Cache }

// part is one socket, node, cache or core: all its CPUs, and the free ones.
type part struct {
	id        int
	all, free cpuset.CPUSet
}

// taker chooses CPUs from those that are free. It takes the largest parts that fit first, and those with the fewest free CPUs
// first of those of the same kind, so that large parts stay free.
type taker struct {
	topology *machine.Topology
	free     cpuset.CPUSet
	taken    cpuset.CPUSet
	need     int
	// outer are the levels above cores, the larger ones first. nodes are those of them down to NUMA nodes.
	outer, nodes []level
}

func newTaker(topology *machine.Topology, free cpuset.CPUSet, need int) *taker {
	t := &taker{topology: topology, free: free, need: need, outer: []level{bySocket, byNode}, nodes: []level{bySocket, byNode}}
	if topology.Sockets() >= topology.CPUNodes().Size() {
		t.outer, t.nodes = []level{byNode, bySocket}, []level{byNode}
	}
	return t
}

// take chooses n of the free CPUs. It does not change what it is given.
func take(topology *machine.Topology, options Options, free cpuset.CPUSet, n int) (cpuset.CPUSet, error) {
	if n > free.Size() {
		return cpuset.New(), fmt.Errorf("not enough CPUs are free: %d requested, %d free (%s)", n, free.Size(), free)
	}
	if !options.Distribute {
		return takePacked(topology, free, n, options.PreferCache), nil
	}
	group := 1
	if options.FullCores {
		group = topology.ThreadsPerCore()
	}
	return takeDistributed(topology, free, n, group), nil
}

// takePacked chooses n CPUs that are as close together as possible. There are that many free ones.
func takePacked(topology *machine.Topology, free cpuset.CPUSet, n int, preferCache bool) cpuset.CPUSet {
	t := newTaker(topology, free, n)
	t.takeFull(t.outer[:1]...)
	t.takeFull(t.outer...)
	if preferCache {
		t.takeCaches()
	}
	t.takeFull(t.outer[0], t.outer[1], byCore)
	for _, core := range t.parts(t.outer[0], t.outer[1], byCore) {
		for _, cpu := range core.free.List() {
			if t.need > 0 {
				t.claim(cpuset.New(cpu))
			}
		}
	}
	return t.taken
}

func (t *taker) claim(cpus cpuset.CPUSet) {
	t.taken, t.free = t.taken.Union(cpus), t.free.Difference(cpus)
	t.need -= cpus.Size()
}

// takeFull takes the parts of the last level that are free as a whole and not larger than what is needed.
func (t *taker) takeFull(levels ...level) {
	for _, p := range t.parts(levels...) {
		if p.free.Equals(p.all) && p.all.Size() <= t.need {
			t.claim(p.all)
		}
	}
}

// parts returns the parts of the last level that have free CPUs: sorted by the number of free CPUs, then by their own number,
// within the parts of the levels before, which are sorted the same way. A part that lies in several of those, as a cache may that
// NUMA nodes share, counts as a whole in each, and comes only once.
func (t *taker) parts(levels ...level) []part {
	parts := []part{{all: t.topology.All(), free: t.free}}
	for _, of := range levels {
		var inner []part
		for _, p := range parts {
			for _, q := range t.split(p, of) {
				if !slices.ContainsFunc(inner, func(r part) bool { return r.id == q.id }) {
					inner = append(inner, q)
				}
			}
		}
		parts = inner
	}
	return parts
}

func (t *taker) split(p part, of level) []part {
	ids := map[int]bool{}
	for _, cpu := range p.free.UnsortedList() {
		ids[of(t.topology.CPUs[cpu])] = true
	}
	parts := make([]part, 0, len(ids))
	for id := range ids {
		all := t.topology.Select(func(c machine.CPU) bool { return of(c) == id })
		parts = append(parts, part{id: id, free: t.free.Intersection(all), all: all})
	}
	slices.SortFunc(parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.free.Size(), b.free.Size()), cmp.Compare(a.id, b.id))
	})
	return parts
}

// takeCaches takes whole caches, and then the rest from a single cache if one has enough free CPUs.
func (t *taker) takeCaches() {
	size := len(t.topology.CPUs) / max(t.topology.Caches(), 1)
	levels := append(slices.Clone(t.nodes), byCache)
	for _, cache := range t.parts(levels...) {
		if t.need >= size {
			t.takeFull(levels...)
		}
		if t.need > 0 {
			t.takeFromCache(cache.id)
		}
		if t.need == 0 {
			return
		}
	}
}

// takeFromCache takes all that is still needed from one cache, from as few cores as possible, or nothing.
func (t *taker) takeFromCache(id int) {
	threads := max(t.topology.ThreadsPerCore(), 1)
	free := t.free.Intersection(t.topology.Select(func(c machine.CPU) bool { return c.Cache == id }))
	cores := map[int][]int{}
	for _, cpu := range free.List() {
		core := t.topology.CPUs[cpu].Core
		cores[core] = append(cores[core], cpu)
	}
	ids := make([]int, 0, len(cores))
	for core := range cores {
		ids = append(ids, core)
	}
	slices.Sort(ids)
	var cpus []int
	for _, core := range ids[:min(len(ids), (t.need+threads-1)/threads)] {
		cpus = append(cpus, cores[core]...)
	}
	slices.Sort(cpus)
	if t.need%2 != 0 && threads > 1 && len(cpus) > t.need {
		cpus = cpus[:len(cpus)-1] // of the last core one CPU is needed
	}
	if len(cpus) == t.need {
		t.claim(cpuset.New(cpus...))
	}
}
