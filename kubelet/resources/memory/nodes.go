package memory

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/internal/resourcename"
	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/machine"
)

// Amounts are bytes by kind of memory: memory or hugepages-SIZE.
type Amounts map[corev1.ResourceName]uint64

// Reservation is what is reserved of the NUMA nodes, by their numbers.
type Reservation map[int]Amounts

// newNodes returns the nodes of a machine of which nothing is given to containers.
func newNodes(topology *machine.Topology, reserved Reservation) nodeMap {
	nodes := nodeMap{}
	for _, n := range topology.Nodes {
		state := &nodeState{MemoryMap: map[corev1.ResourceName]*table{}, Cells: []int{n.ID}}
		pages := uint64(0)
		for _, p := range n.Pages {
			kind, total := resourcename.HugePages(int64(p.Size)), p.Size*p.Count
			state.MemoryMap[kind] = newTable(total, 0, reserved[n.ID][kind])
			pages += total
		}
		state.MemoryMap[corev1.ResourceMemory] = newTable(n.Memory, pages, reserved[n.ID][corev1.ResourceMemory])
		nodes[n.ID] = state
	}
	return nodes
}

func newTable(total, used, reserved uint64) *table {
	usable := total - min(total, used+reserved)
	return &table{TotalMemSize: total, SystemReserved: reserved, Allocatable: usable, Free: usable}
}

// take records that a container has the memory, of the nodes in their order. reused of it was counted before. lacking is what the
// nodes do not have.
func (n nodeMap) take(b Block, reused uint64) (lacking uint64) {
	rest := b.Size - min(b.Size, reused)
	for _, id := range b.NUMAAffinity {
		node := n[id]
		node.NumberOfAssignments++
		node.Cells = slices.Clone(b.NUMAAffinity)
		t := node.MemoryMap[b.Type]
		if t == nil {
			continue
		}
		part := min(rest, t.Free)
		t.Free -= part
		t.Reserved += part
		rest -= part
	}
	return rest
}

// give records that a container does not have the memory any more.
func (n nodeMap) give(b Block) {
	rest := b.Size
	for _, id := range b.NUMAAffinity {
		node := n[id]
		if node == nil {
			continue
		}
		if node.NumberOfAssignments--; node.NumberOfAssignments == 0 {
			node.Cells = []int{id}
		}
		t := node.MemoryMap[b.Type]
		if t == nil {
			continue
		}
		part := min(rest, t.Reserved)
		t.Reserved -= part
		t.Free += part
		rest -= part
	}
}

// check returns an error if a container cannot have the memory: the machine has changed.
func (n nodeMap) check(b Block) error {
	for _, id := range b.NUMAAffinity {
		if n[id] == nil {
			return fmt.Errorf("the machine has no NUMA node %d", id)
		}
		if n[id].MemoryMap[b.Type] == nil {
			return fmt.Errorf("NUMA node %d has no %s", id, b.Type)
		}
	}
	return nil
}

// differs describes the first difference between the machines of the nodes and of others; "" if there is none.
func (n nodeMap) differs(others nodeMap) string {
	if !slices.Equal(slices.Sorted(maps.Keys(n)), slices.Sorted(maps.Keys(others))) {
		return "the set of NUMA nodes"
	}
	for _, id := range slices.Sorted(maps.Keys(n)) {
		a, b := n[id], others[id]
		if len(a.MemoryMap) != len(b.MemoryMap) {
			return fmt.Sprintf("the set of kinds of memory of NUMA node %d", id)
		}
		for _, kind := range slices.Sorted(maps.Keys(a.MemoryMap)) {
			t, u := a.MemoryMap[kind], b.MemoryMap[kind]
			if u == nil || t.TotalMemSize != u.TotalMemSize || t.SystemReserved != u.SystemReserved || t.Allocatable != u.Allocatable {
				return fmt.Sprintf("the amount or the reservation of %s of NUMA node %d", kind, id)
			}
		}
	}
	return ""
}

// givesAs reports whether the nodes have given as much as others, which have given it in another order: which node of a group has given
// which part depends on that.
func (n nodeMap) givesAs(others nodeMap) bool {
	for id, a := range n {
		b := others[id]
		if a.NumberOfAssignments != b.NumberOfAssignments || !slices.Equal(sorted(a.Cells), sorted(b.Cells)) {
			return false
		}
		for kind := range a.MemoryMap {
			if n.freeOf(a.Cells, kind) != others.freeOf(a.Cells, kind) {
				return false
			}
		}
	}
	return true
}

func sorted(ids []int) []int { return slices.Sorted(slices.Values(ids)) }

// freeOf returns how much of a kind of memory is free on the nodes together.
func (n nodeMap) freeOf(ids []int, kind corev1.ResourceName) (free uint64) {
	for _, id := range ids {
		if node := n[id]; node != nil && node.MemoryMap[kind] != nil {
			free += node.MemoryMap[kind].Free
		}
	}
	return free
}

func (n nodeMap) allocatableOf(ids []int, kind corev1.ResourceName) (all uint64) {
	for _, id := range ids {
		if node := n[id]; node != nil && node.MemoryMap[kind] != nil {
			all += node.MemoryMap[kind].Allocatable
		}
	}
	return all
}

// groupable reports whether the nodes may give memory together: a node gives memory either alone or always with the same others.
func (n nodeMap) groupable(mask hints.Mask) bool {
	ids := mask.Nodes()
	if len(ids) == 1 {
		return n[ids[0]] == nil || len(n[ids[0]].Cells) <= 1
	}
	for _, id := range ids {
		if node := n[id]; node.NumberOfAssignments > 0 && (len(node.Cells) == 1 || !slices.Equal(sorted(node.Cells), ids)) {
			return false
		}
	}
	return true
}

// hints returns the sets of nodes that have enough of all kinds of memory. reusable returns what the Pod's init containers leave
// on a set of nodes.
func (n nodeMap) hints(want Amounts, reusable func(hints.Mask, corev1.ResourceName) uint64) []hints.Hint {
	ids := slices.Sorted(maps.Keys(n))
	found, least := []hints.Hint{}, len(ids)
	hints.Combinations(ids, func(mask hints.Mask) {
		nodes := mask.Nodes()
		for kind, size := range want {
			if n.allocatableOf(nodes, kind) < size {
				return
			}
		}
		least = min(least, mask.Count())
		if !n.groupable(mask) {
			return
		}
		for kind, size := range want {
			if n.freeOf(nodes, kind)+reusable(mask, kind) < size {
				return
			}
		}
		found = append(found, hints.Hint{Nodes: mask})
	})
	for i := range found {
		found[i].Preferred = found[i].Nodes.Count() == least
	}
	return found
}

// describe returns what is free of the kinds of memory, for a message.
func (n nodeMap) describe(want Amounts) string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(want)) {
		parts = append(parts, fmt.Sprintf("%s: %s", kind, n.freeByNode(kind)))
	}
	return strings.Join(parts, "; ")
}

// freeByNode returns how much of one kind of memory each node has, for a message.
func (n nodeMap) freeByNode(kind corev1.ResourceName) string {
	var parts []string
	for _, id := range slices.Sorted(maps.Keys(n)) {
		parts = append(parts, fmt.Sprintf("%s on NUMA node %d", resource.NewQuantity(int64(n.freeOf([]int{id}, kind)), resource.BinarySI), id))
	}
	return strings.Join(parts, ", ")
}
