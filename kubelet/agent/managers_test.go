package agent

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/kubelet/eviction"
	"github.com/berth-dev/berth/kubelet/node"
	"github.com/berth-dev/berth/kubelet/resources"
	"github.com/berth-dev/berth/kubelet/resources/memory"
)

func TestReservedMemoryIsThatOfTheNode(t *testing.T) {
	const mib = 1 << 20
	thresholds, err := eviction.ParseThresholds(eviction.Config{Hard: eviction.DefaultHard()})
	require.NoError(t, err)
	of := node.Config{
		Thresholds: thresholds, SystemReserved: corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")},
		KubeReserved: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1000Mi")},
	}
	reserved := of.Reserved(corev1.ResourceList{
		corev1.ResourceMemory: resource.MustParse("8Gi"), "hugepages-2Mi": resource.MustParse("1Gi"), // which is not withheld
	})
	for want, ofNodes := range map[string]memory.Reservation{
		"": {0: {corev1.ResourceMemory: 1000 * mib}, 1: {corev1.ResourceMemory: 100 * mib, "hugepages-2Mi": 4 * mib}},
		"reserves 1000Mi of memory, and kubeReserved, systemReserved and evictionHard together 1100Mi": {
			0: {corev1.ResourceMemory: 1000 * mib, "hugepages-2Mi": 4 * mib}},
		"reserves 0 of hugepages-2Mi, and kubeReserved, systemReserved and evictionHard together 4Mi": {
			0: {corev1.ResourceMemory: 1100 * mib}},
		"reserves 1Gi of hugepages-1Gi, and kubeReserved, systemReserved and evictionHard together 0": {
			0: {corev1.ResourceMemory: 1100 * mib, "hugepages-2Mi": 4 * mib, "hugepages-1Gi": 1 << 30}},
	} {
		err := checkReservedMemory(reserved, &resources.Config{ReservedMemory: ofNodes})
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
	}
}

func TestPodsThatHaveEndedHaveNothing(t *testing.T) {
	phases := map[types.UID]corev1.PodPhase{"runs": corev1.PodRunning, "succeeded": corev1.PodSucceeded, "failed": corev1.PodFailed}
	var pods []*corev1.Pod
	for _, uid := range []types.UID{"new", "runs", "succeeded", "failed"} {
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}})
	}
	have := withoutEnded(pods, func(uid types.UID) (corev1.PodStatus, bool) {
		phase, known := phases[uid]
		return corev1.PodStatus{Phase: phase}, known
	})
	require.Len(t, have, 2)
	require.Equal(t, types.UID("new"), have[0].UID)
	require.Equal(t, types.UID("runs"), have[1].UID)
}
