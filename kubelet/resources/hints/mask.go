package hints

import (
	"math/bits"
	"strconv"
	"strings"
)

// Mask is a set of NUMA nodes: bit N stands for node N. A machine has at most MaxNodes.
type Mask uint64

// MaxNodes is how many NUMA nodes a Mask can have.
const MaxNodes = 64

// MaskOf returns the set of the nodes.
func MaskOf(nodes ...int) Mask {
	var m Mask
	for _, node := range nodes {
		m |= 1 << node
	}
	return m
}

// Has reports whether the node is in the set.
func (m Mask) Has(node int) bool { return m&(1<<node) != 0 }

// Count returns how many nodes are in the set.
func (m Mask) Count() int { return bits.OnesCount64(uint64(m)) }

// Nodes returns the nodes, sorted.
func (m Mask) Nodes() []int {
	nodes := make([]int, 0, m.Count())
	for rest := m; rest != 0; rest &= rest - 1 {
		nodes = append(nodes, bits.TrailingZeros64(uint64(rest)))
	}
	return nodes
}

// String returns the nodes as "0,2".
func (m Mask) String() string {
	texts := make([]string, 0, m.Count())
	for _, node := range m.Nodes() {
		texts = append(texts, strconv.Itoa(node))
	}
	return strings.Join(texts, ",")
}

// NarrowerThan reports whether the set has fewer nodes, or as many and lower ones.
func (m Mask) NarrowerThan(other Mask) bool {
	if m.Count() != other.Count() {
		return m.Count() < other.Count()
	}
	return m < other
}

// Combinations calls do with each set of the nodes that is not empty: the smaller sets first, those of the same size in the order of
// their nodes.
func Combinations(nodes []int, do func(Mask)) {
	var choose func(rest []int, chosen Mask, missing int)
	choose = func(rest []int, chosen Mask, missing int) {
		if missing == 0 {
			do(chosen)
			return
		}
		for i, node := range rest {
			choose(rest[i+1:], chosen|1<<node, missing-1)
		}
	}
	for size := 1; size <= len(nodes); size++ {
		choose(nodes, 0, size)
	}
}
