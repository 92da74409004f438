package hints_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/machine/machinetest"
)

func TestCombinationsAreOrdered(t *testing.T) {
	var got []string
	hints.Combinations([]int{0, 2, 5}, func(m hints.Mask) { got = append(got, m.String()) })
	require.Equal(t, []string{"0", "2", "5", "0,2", "0,5", "2,5", "0,2,5"}, got)
}

// TestMerge has the examples of the documentation of the topology manager's policies.
func TestMerge(t *testing.T) {
	type list = []hints.Hint
	on := func(preferred bool, nodes ...int) hints.Hint {
		return hints.Hint{Nodes: hints.MaskOf(nodes...), Preferred: preferred}
	}
	for name, c := range map[string]struct {
		policy hints.Policy
		all    []hints.ByResource
		want   hints.Hint
		admit  bool
	}{
		"none admits all":                {hints.None, []hints.ByResource{{"cpu": {}}}, hints.Hint{}, true},
		"no preference":                  {hints.Restricted, []hints.ByResource{nil, {"gpu": nil}}, on(true, 0, 1), true},
		"no preference of a single node": {hints.SingleNode, []hints.ByResource{nil}, hints.Hint{Preferred: true}, true},
		"same node": {hints.SingleNode, []hints.ByResource{
			{"cpu": list{on(true, 0), on(true, 1), on(false, 0, 1)}}, {"gpu": list{on(true, 1)}},
		}, on(true, 1), true},
		"different nodes": {hints.SingleNode, []hints.ByResource{{"cpu": list{on(true, 0)}}, {"gpu": list{on(true, 1)}}}, hints.Hint{}, false},
		"different nodes, restricted": {hints.Restricted, []hints.ByResource{
			{"cpu": list{on(true, 0), on(false, 0, 1)}}, {"gpu": list{on(true, 1), on(false, 0, 1)}},
		}, on(false, 0), false},
		"different nodes, best effort": {hints.BestEffort, []hints.ByResource{
			{"cpu": list{on(true, 0), on(false, 0, 1)}}, {"gpu": list{on(true, 1), on(false, 0, 1)}},
		}, on(false, 0), true},
		"two nodes are needed":             {hints.Restricted, []hints.ByResource{{"cpu": list{on(true, 0, 1)}}, {"gpu": list{on(true, 0, 1)}}}, on(true, 0, 1), true},
		"two nodes are needed, one wanted": {hints.SingleNode, []hints.ByResource{{"cpu": list{on(true, 0, 1)}}}, hints.Hint{}, false},
		"nothing is free":                  {hints.Restricted, []hints.ByResource{{"cpu": list{}}}, on(false, 0, 1), false},
		"nothing is free, best effort":     {hints.BestEffort, []hints.ByResource{{"cpu": list{}}}, on(false, 0, 1), true},
	} {
		t.Run(name, func(t *testing.T) {
			got, admit := hints.NewMerger(c.policy, machinetest.New(2, 1, 2, 1), false).Merge(c.all)
			require.Equal(t, c.admit, admit)
			require.Equal(t, c.want, got)
		})
	}
}

func TestMergePrefersCloseNodes(t *testing.T) {
	machine := machinetest.New(2, 2, 2, 1) // nodes 0 and 1 on one socket, 2 and 3 on the other
	all := []hints.ByResource{{"cpu": {
		{Nodes: hints.MaskOf(0, 2), Preferred: true}, {Nodes: hints.MaskOf(2, 3), Preferred: true},
	}}}
	lower, _ := hints.NewMerger(hints.Restricted, machine, false).Merge(all)
	require.Equal(t, "0,2", lower.Nodes.String())
	closer, _ := hints.NewMerger(hints.Restricted, machine, true).Merge(all)
	require.Equal(t, "2,3", closer.Nodes.String())
}
