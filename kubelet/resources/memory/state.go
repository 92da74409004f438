package memory

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/resources/checkpoint"
)

// StateFile is the name of the state file in the kubelet's directory.
const StateFile = "memory_manager_state"

// The types below are the content of the state file. The names of their fields, and their order, are part of the checksum.

// table is how much of one kind of memory a NUMA node has, in bytes.
type table struct {
	TotalMemSize   uint64 `json:"total"`
	SystemReserved uint64 `json:"systemReserved"`
	Allocatable    uint64 `json:"allocatable"`
	Reserved       uint64 `json:"reserved"`
	Free           uint64 `json:"free"`
}

// nodeState is one NUMA node. Cells are the nodes that give memory together with it, itself included.
type nodeState struct {
	NumberOfAssignments int                            `json:"numberOfAssignments"`
	MemoryMap           map[corev1.ResourceName]*table `json:"memoryMap"`
	Cells               []int                          `json:"cells"`
}

// nodeMap are the NUMA nodes by their numbers.
type nodeMap map[int]*nodeState

// Block is the memory of one kind that a container has on NUMA nodes.
type Block struct {
	NUMAAffinity []int               `json:"numaAffinity"`
	Type         corev1.ResourceName `json:"type"`
	Size         uint64              `json:"size"`
}

// assignments are the blocks of containers, by the Pod's UID and the container's name.
type assignments map[string]map[string][]Block

// ownedBlock is memory and the container that has it.
type ownedBlock struct {
	uid, container string
	Block
}

// owned returns the memory of all containers: first what is of few NUMA nodes, because it has the fewest other places.
func (a assignments) owned() []ownedBlock {
	var all []ownedBlock
	for _, uid := range slices.Sorted(maps.Keys(a)) {
		for _, name := range slices.Sorted(maps.Keys(a[uid])) {
			for _, b := range a[uid][name] {
				all = append(all, ownedBlock{uid: uid, container: name, Block: b})
			}
		}
	}
	slices.SortStableFunc(all, func(x, y ownedBlock) int { return cmp.Compare(len(x.NUMAAffinity), len(y.NUMAAffinity)) })
	return all
}

// fileContent is the content of the file.
type fileContent struct {
	PolicyName   string         `json:"policyName"`
	MachineState nodeMap        `json:"machineState"`
	Entries      assignments    `json:"entries,omitempty"`
	Checksum     checkpoint.Sum `json:"checksum"`
}

// Names of upstream's type: the first is that of files that it writes, the second that of some releases.
const (
	upstreamType    = "(*state.MemoryManagerCheckpoint)"
	upstreamTypeAlt = "(*state.MemoryManagerCheckpointV1)"
)

var _ checkpoint.Content = (*fileContent)(nil)

// Policy implements checkpoint.Content.
func (c *fileContent) Policy() string { return c.PolicyName }

// Stored implements checkpoint.Content.
func (c *fileContent) Stored() checkpoint.Sum { return c.Checksum }

// Sums implements checkpoint.Content.
func (c *fileContent) Sums() []checkpoint.Sum {
	return []checkpoint.Sum{c.checksum(upstreamType), c.checksum(upstreamTypeAlt)}
}

// Check implements checkpoint.Content.
func (c *fileContent) Check() error {
	for id, node := range c.MachineState {
		if node == nil {
			return fmt.Errorf("NUMA node %d has no content", id)
		}
		for kind, t := range node.MemoryMap {
			if t == nil {
				return fmt.Errorf("%s of NUMA node %d has no content", kind, id)
			}
		}
	}
	return nil
}

func (c *fileContent) checksum(name string) checkpoint.Sum {
	content := *c
	content.Checksum = 0
	if content.Entries == nil {
		content.Entries = assignments{}
	}
	if content.MachineState == nil {
		content.MachineState = nodeMap{}
	}
	return checkpoint.Sum(checkpoint.Checksum(&content, "(*memory.fileContent)", name,
		"(memory.nodeMap)", "(state.NUMANodeMap)", "(*memory.nodeState)", "(*state.NUMANodeState)",
		"*memory.table", "*state.MemoryTable", "(memory.assignments)", "(state.ContainerMemoryAssignments)",
		"memory.Block", "state.Block"))
}

// state is what was decided.
type state struct {
	nodes nodeMap
	given assignments
}

func (s state) clone() state {
	out := state{nodes: nodeMap{}, given: assignments{}}
	for id, node := range s.nodes {
		copied := &nodeState{NumberOfAssignments: node.NumberOfAssignments, MemoryMap: map[corev1.ResourceName]*table{}, Cells: slices.Clone(node.Cells)}
		for kind, t := range node.MemoryMap {
			own := *t
			copied.MemoryMap[kind] = &own
		}
		out.nodes[id] = copied
	}
	for uid, containers := range s.given {
		out.given[uid] = map[string][]Block{}
		for name, blocks := range containers {
			out.given[uid][name] = slices.Clone(blocks)
		}
	}
	return out
}

func stateFile(dir string) checkpoint.File {
	return checkpoint.File{Dir: dir, Name: StateFile, Manager: "memory manager"}
}

// readState reads the file of the policy. found is false if there is none, or if a damaged one was set aside.
func (m *Manager) readState() (s state, found bool, err error) {
	var c fileContent
	effect := ""
	if m.config.Static {
		effect = "containers that run get memory of chosen NUMA nodes anew, and what they allocate from now on may be on others"
	}
	found, err = stateFile(m.config.Dir).Open(m.logger, m.policy, effect, &c)
	if err != nil || !found {
		return state{}.clone(), false, err
	}
	return state{nodes: c.MachineState, given: c.Entries}.clone(), true, nil
}

// writeState replaces the file.
func writeState(dir, policy string, s state) error {
	c := fileContent{PolicyName: policy, MachineState: s.nodes, Entries: s.given}
	c.Checksum = c.checksum(upstreamType)
	return stateFile(dir).Write(&c)
}
