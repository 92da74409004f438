package resources_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/resources"
	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/machine/machinetest"
	"github.com/berth-dev/berth/kubelet/resources/memory"
)

// TestPodsThatCannotBeAligned admits Pods on a machine with two NUMA nodes of four CPUs each, of which CPU 0 is reserved. What a policy
// demands and the nodes do not have is the reason of the rejection, with upstream's name; what is asked for is kept for none of them.
func TestPodsThatCannotBeAligned(t *testing.T) {
	const refused = "TopologyAffinityError"
	for _, test := range []struct {
		name   string
		policy hints.Policy
		cpus   []string // of one Pod after the other
		reason string   // of the last one's rejection; empty if it is admitted
	}{
		{"one node has them", hints.SingleNode, []string{"4"}, ""},
		{"no node has so many", hints.SingleNode, []string{"5"}, refused},
		{"no node has so many left", hints.SingleNode, []string{"4", "4"}, refused},
		{"no set of nodes is smaller", hints.Restricted, []string{"5"}, ""},
		{"a smaller set would do if it were free", hints.Restricted, []string{"2", "3", "2"}, refused},
		{"any nodes will do", hints.BestEffort, []string{"2", "3", "2"}, ""},
		{"there are not so many", hints.BestEffort, []string{"8"}, "UnexpectedAdmissionError"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, err := resources.New(resources.Deps{
				Client: fake.NewClientset(), Topology: machinetest.New(2, 1, 4, 1), OnPoolChanged: func() {}, OnDevicesChanged: func() {},
				OnHealthChanged: func(types.UID) {},
			}, resources.Config{Dir: t.TempDir(), StaticCPUs: true, ReservedCPUCount: 1, Policy: test.policy})
			require.NoError(t, err)
			require.NoError(t, m.Open())
			for i, count := range test.cpus {
				uid := types.UID(fmt.Sprint("pod-", i))
				result := m.Admit(&lifecycle.PodAdmitAttributes{Pod: podWithCPUs(uid, count)})
				if i < len(test.cpus)-1 || test.reason == "" {
					require.True(t, result.Admit, "Pod %d: %s", i, result.Message)
					continue
				}
				require.False(t, result.Admit)
				require.Equal(t, test.reason, result.Reason, result.Message)
				require.False(t, m.HasExclusiveCPUs(uid))
			}
		})
	}
}

// TestRefusalsSayWhatIsFree: the message of a refused Pod is what `berth explain` has to go by.
func TestRefusalsSayWhatIsFree(t *testing.T) {
	m, err := resources.New(resources.Deps{
		Client: fake.NewClientset(), Topology: machinetest.New(2, 1, 4, 1), OnPoolChanged: func() {}, OnDevicesChanged: func() {},
		OnHealthChanged: func(types.UID) {},
	}, resources.Config{
		Dir: t.TempDir(), StaticCPUs: true, ReservedCPUCount: 1, Policy: hints.SingleNode, StaticMemory: true,
		ReservedMemory: memory.Reservation{0: {corev1.ResourceMemory: 1 << 30}},
	})
	require.NoError(t, err)
	require.NoError(t, m.Open())
	require.True(t, m.Admit(&lifecycle.PodAdmitAttributes{Pod: podWithCPUs("first", "3")}).Admit)
	refused := m.Admit(&lifecycle.PodAdmitAttributes{Pod: podWithCPUs("second", "5")})
	require.Equal(t, "Resources cannot be allocated with Topology locality: policy single-numa-node of the topology manager finds no NUMA nodes "+
		`that suit all resources of container "c": enough cpu is free on no nodes (free: 4 (none on NUMA node 0, 4-7 on NUMA node 1)); enough memory is free on `+
		"{0} or {1} (free: 12Gi on NUMA node 0, 14Gi on NUMA node 1)", refused.Message)
}

func podWithCPUs(uid types.UID, count string) *corev1.Pod {
	pod := exclusivePod(uid)
	for _, list := range []corev1.ResourceList{pod.Spec.Containers[0].Resources.Requests, pod.Spec.Containers[0].Resources.Limits} {
		list[corev1.ResourceCPU] = resource.MustParse(count)
	}
	return pod
}
