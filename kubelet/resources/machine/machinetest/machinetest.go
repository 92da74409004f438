// Package machinetest makes topologies of machines for tests.
package machinetest

import "github.com/berth-dev/berth/kubelet/resources/machine"

// New returns a machine with so many sockets, NUMA nodes on each, cores in each node, and threads of each core; the numbers of
// threads of one core lie as far apart as there are cores. Each node has 16 GiB, 2 GiB of them as huge pages of 2 MiB.
func New(sockets, nodes, cores, threads int) *machine.Topology {
	t := &machine.Topology{CPUs: map[int]machine.CPU{}}
	all := sockets * nodes * cores
	for core := range all {
		node := core / cores
		for thread := range threads {
			t.CPUs[core+thread*all] = machine.CPU{Core: core, Node: node, Socket: node / nodes, Cache: node / nodes}
		}
	}
	for node := range sockets * nodes {
		n := machine.Node{ID: node, Memory: 16 << 30, Pages: []machine.Pages{{Size: 2 << 20, Count: 1 << 10}}}
		for other := range sockets * nodes {
			distance := uint64(20)
			switch {
			case other == node:
				distance = 10
			case other/nodes == node/nodes:
				distance = 12
			}
			n.Distances = append(n.Distances, distance)
		}
		t.Nodes = append(t.Nodes, n)
	}
	return t
}
