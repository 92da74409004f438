package hints

import (
	"maps"
	"slices"

	"github.com/berth-dev/berth/kubelet/resources/machine"
)

// Hint is a set of NUMA nodes that has enough of a resource.
type Hint struct {
	// Nodes is empty if any nodes will do.
	Nodes Mask
	// Preferred says that no smaller set could have enough of it, were all of it free.
	Preferred bool
}

// ByResource are the hints of one manager. A resource with nil has no preference, one with an empty list cannot be had.
type ByResource map[string][]Hint

// Policy is how hints are merged. The values are those of the field topologyManagerPolicy.
type Policy string

// The policies: None gives each manager a free hand; BestEffort takes the best set of nodes; Restricted takes it only if it
// is preferred by all; SingleNode takes a single node only.
const (
	None       Policy = "none"
	BestEffort Policy = "best-effort"
	Restricted Policy = "restricted"
	SingleNode Policy = "single-numa-node"
)

// Merger merges hints for one machine.
type Merger struct {
	policy Policy
	// all are the nodes of the machine.
	all Mask
	// distances are set if closer nodes are preferred to lower ones.
	distances map[int][]uint64
}

// NewMerger returns a Merger. closest prefers nodes by their distances.
func NewMerger(policy Policy, topology *machine.Topology, closest bool) *Merger {
	m := &Merger{policy: policy, all: MaskOf(topology.NodeIDs()...)}
	if closest && policy != SingleNode {
		m.distances = map[int][]uint64{}
		for _, node := range topology.Nodes {
			m.distances[node.ID] = node.Distances
		}
	}
	return m
}

// Merge returns the best set of nodes for the hints of all managers, and whether the policy admits it. The nodes of a result
// without preference are empty.
func (m *Merger) Merge(managers []ByResource) (best Hint, admit bool) {
	if m.policy == None {
		return Hint{}, true
	}
	lists := flatten(managers)
	if m.policy == SingleNode {
		lists = singleNodes(lists)
	}
	best = m.best(lists)
	if m.policy == SingleNode && best.Nodes == m.all {
		best.Nodes = 0
	}
	return best, m.policy == BestEffort || best.Preferred
}

// flatten returns one list of hints for each resource, in the order of managers and names.
func flatten(managers []ByResource) [][]Hint {
	var lists [][]Hint
	for _, manager := range managers {
		if len(manager) == 0 {
			lists = append(lists, []Hint{{Preferred: true}})
		}
		for _, name := range slices.Sorted(maps.Keys(manager)) {
			list := manager[name]
			switch {
			case list == nil:
				list = []Hint{{Preferred: true}}
			case len(list) == 0:
				list = []Hint{{}}
			}
			lists = append(lists, list)
		}
	}
	return lists
}

// singleNodes keeps the preferred hints with one node or without preference.
func singleNodes(lists [][]Hint) [][]Hint {
	out := make([][]Hint, 0, len(lists))
	for _, list := range lists {
		out = append(out, slices.DeleteFunc(slices.Clone(list), func(h Hint) bool { return !h.Preferred || h.Nodes.Count() > 1 }))
	}
	return out
}

// best returns the best of all combinations of one hint of each list: all nodes, not preferred, if there is none.
func (m *Merger) best(lists [][]Hint) Hint {
	target := widestMinimum(lists)
	best, found := Hint{Nodes: m.all}, false
	var walk func(rest [][]Hint, merged Hint, first Mask)
	walk = func(rest [][]Hint, merged Hint, first Mask) {
		if len(rest) == 0 {
			if merged.Nodes != 0 && (!found || m.better(merged, best, target)) {
				best, found = merged, true
			}
			return
		}
		for _, hint := range rest[0] {
			next, start := merged, first
			next.Preferred = next.Preferred && hint.Preferred
			if hint.Nodes != 0 {
				if start == 0 {
					start = hint.Nodes
				}
				next.Nodes &= hint.Nodes
				next.Preferred = next.Preferred && hint.Nodes == start
			}
			walk(rest[1:], next, start)
		}
	}
	walk(lists, Hint{Nodes: m.all, Preferred: true}, 0)
	return best
}

// widestMinimum returns how many nodes the resource needs that needs the most.
func widestMinimum(lists [][]Hint) int {
	widest := 0
	for _, list := range lists {
		least := 0
		for _, hint := range list {
			if n := hint.Nodes.Count(); n > 0 && (least == 0 || n < least) {
				least = n
			}
		}
		widest = max(widest, least)
	}
	return widest
}

// better reports whether the candidate is better than the best so far. Of two that are not preferred, the one with as many
// nodes as the resource that needs the most is better, or else the one that has nearly as many.
func (m *Merger) better(candidate, best Hint, target int) bool {
	if candidate.Preferred != best.Preferred {
		return candidate.Preferred
	}
	have, want := best.Nodes.Count(), candidate.Nodes.Count()
	switch {
	case candidate.Preferred, have > target:
		return m.closer(candidate.Nodes, best.Nodes)
	case want > target:
		return false
	case want != have:
		return want > have
	}
	return m.closer(candidate.Nodes, best.Nodes)
}

// closer reports whether a is narrower than b, or as narrow and, if distances count, closer together.
func (m *Merger) closer(a, b Mask) bool {
	if m.distances == nil || a.Count() != b.Count() {
		return a.NarrowerThan(b)
	}
	x, y := m.distance(a), m.distance(b)
	if x == y {
		return a < b
	}
	return x < y
}

// distance returns the mean distance of all pairs of nodes.
func (m *Merger) distance(mask Mask) float64 {
	sum, count := 0.0, 0.0
	for _, from := range mask.Nodes() {
		for _, to := range mask.Nodes() {
			if to < len(m.distances[from]) {
				sum += float64(m.distances[from][to])
			}
			count++
		}
	}
	if count == 0 {
		return 0
	}
	return sum / count
}
