package cpus

import (
	"maps"
	"math"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/kubelet/resources/machine"
)

// share is how CPUs are spread over NUMA nodes: each node gives the same number, and some give more.
type share struct {
	nodes, more []int
	each        int
	// balance is the standard deviation of what stays free of all nodes; the less, the better.
	balance float64
}

// takeDistributed chooses n CPUs from as few NUMA nodes as possible, in groups of a size, evenly from each of them (KEP-2902).
// Where that is not possible it takes them as takePacked does.
func takeDistributed(topology *machine.Topology, free cpuset.CPUSet, n, group int) cpuset.CPUSet {
	group = max(group, 1)
	if n == 0 || n%group != 0 {
		return takePacked(topology, free, n, false)
	}
	d := distribution{need: n, group: group, free: map[int]int{}}
	t := newTaker(topology, free, n)
	for _, p := range t.parts(t.nodes...) {
		d.nodes = append(d.nodes, p.id)
		d.free[p.id] = p.free.Size()
	}
	least, most := d.bounds(topology)
	for count := least; count <= most; count++ {
		if best, ok := d.best(count); ok {
			return takeShare(topology, free, best, n, group)
		}
	}
	return takePacked(topology, free, n, false)
}

func takeShare(topology *machine.Topology, free cpuset.CPUSet, s share, n, group int) cpuset.CPUSet {
	taken := cpuset.New()
	from := func(node, count int) {
		of := free.Difference(taken).Intersection(topology.InNodes(node))
		taken = taken.Union(takePacked(topology, of, min(count, of.Size()), false))
	}
	for _, node := range s.nodes {
		from(node, s.each)
	}
	for n > taken.Size() && len(s.more) > 0 {
		before := taken.Size()
		for _, node := range s.more {
			if n > taken.Size() && free.Difference(taken).Intersection(topology.InNodes(node)).Size() >= group {
				from(node, group)
			}
		}
		if taken.Size() == before {
			break
		}
	}
	if rest := n - taken.Size(); rest > 0 {
		taken = taken.Union(takePacked(topology, free.Difference(taken), rest, false))
	}
	return taken
}

// distribution looks for the best share of the free CPUs, whose numbers it has by node.
type distribution struct {
	need, group int
	nodes       []int
	free        map[int]int
}

// bounds returns how many nodes are needed at least, and how many are useful at most.
func (d *distribution) bounds(topology *machine.Topology) (least, most int) {
	up := func(a, b int) int { return (a + b - 1) / b }
	needed := up(d.need, d.group)
	each := up(up(len(topology.CPUs), d.group), topology.CPUNodes().Size())
	return up(needed, each), min(needed, len(d.nodes))
}

// best returns the best share of that many nodes.
func (d *distribution) best(count int) (best share, found bool) {
	subsets(d.nodes, count, func(nodes []int) {
		if found && best.balance == 0 {
			return
		}
		if s, ok := d.share(nodes); ok && (!found || s.balance < best.balance) {
			best, found = s, true
		}
	})
	return best, found
}

// share returns the share of the nodes, and whether they have enough.
func (d *distribution) share(nodes []int) (share, bool) {
	total, groups := 0, 0
	s := share{nodes: slices.Clone(nodes), each: d.need / len(nodes) / d.group * d.group, balance: math.MaxFloat64}
	for _, node := range nodes {
		total += d.free[node]
		groups += d.free[node] / d.group
		if d.free[node] < s.each {
			return s, false
		}
	}
	if total < d.need || groups*d.group < d.need {
		return s, false
	}
	left := maps.Clone(d.free)
	var able []int // nodes that can give one more group
	for _, node := range nodes {
		left[node] -= s.each
		if left[node] >= d.group {
			able = append(able, node)
		}
	}
	rest := d.need - s.each*len(nodes)
	if rest == 0 {
		s.balance = deviation(left)
		return s, true
	}
	for size := len(able); size >= 1; size-- {
		subsets(able, size, func(more []int) {
			if balance, ok := d.balance(left, more, rest); ok && balance < s.balance {
				s.balance, s.more = balance, slices.Clone(more)
			}
		})
	}
	return s, s.more != nil
}

// balance returns the deviation after the nodes have given the rest in groups.
func (d *distribution) balance(left map[int]int, more []int, rest int) (float64, bool) {
	left = maps.Clone(left)
	for rest > 0 {
		before := rest
		for _, node := range more {
			if rest > 0 && left[node] >= d.group {
				left[node] -= d.group
				rest -= d.group
			}
		}
		if rest == before {
			return 0, false
		}
	}
	return deviation(left), true
}

// deviation returns the standard deviation, to three digits.
func deviation(counts map[int]int) float64 {
	round := func(x float64) float64 { return math.Round(x*1000) / 1000 }
	sum, n := 0.0, float64(len(counts))
	for _, count := range counts {
		sum += float64(count)
	}
	mean, squares := round(sum/n), 0.0
	for _, count := range counts {
		squares += (float64(count) - mean) * (float64(count) - mean)
	}
	return round(math.Sqrt(squares / n))
}

// subsets calls do with each subset of the size, in order. do must not keep it.
func subsets(of []int, size int, do func([]int)) {
	var choose func(rest, chosen []int)
	choose = func(rest, chosen []int) {
		if len(chosen) == size {
			do(chosen)
			return
		}
		for i := range rest {
			choose(rest[i+1:], append(chosen, rest[i]))
		}
	}
	choose(of, make([]int, 0, size))
}
