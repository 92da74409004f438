package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/kubelet/qos"
)

// TestResourcesOfThePodAreComplete: they are those that the API server would have set.
func TestResourcesOfThePodAreComplete(t *testing.T) {
	const containers = `  initContainers: [{name: i, image: i, resources: {requests: {cpu: 2}}}]
  containers:
  - {name: a, image: i, resources: {requests: {cpu: 300m}, limits: {hugepages-2Mi: 4Mi, memory: 32Mi, ephemeral-storage: 1Gi}}}
  - {name: b, image: i, resources: {requests: {cpu: 200m}}}
  resources: `
	for own, want := range map[string]corev1.ResourceRequirements{
		"{}": {},
		"{limits: {memory: 64Mi}}": {
			Requests: amounts("cpu", "2", "memory", "32Mi", "hugepages-2Mi", "4Mi"), Limits: amounts("memory", "64Mi", "hugepages-2Mi", "4Mi"),
		},
		"{limits: {cpu: 3, hugepages-1Gi: 1Gi}}": {
			Requests: amounts("cpu", "2", "memory", "32Mi", "hugepages-1Gi", "1Gi", "hugepages-2Mi", "4Mi"),
			Limits:   amounts("cpu", "3", "hugepages-1Gi", "1Gi", "hugepages-2Mi", "4Mi"),
		},
		"{requests: {cpu: 3}}": {
			Requests: amounts("cpu", "3", "memory", "32Mi", "hugepages-2Mi", "4Mi"), Limits: amounts("hugepages-2Mi", "4Mi"),
		},
		"{requests: {hugepages-2Mi: 8Mi}}": {Requests: amounts("hugepages-2Mi", "8Mi")},
	} {
		t.Run(own, func(t *testing.T) {
			pod := decodeOne(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n"+containers+own+"\n", origin)
			requireAmounts(t, want.Requests, pod.Spec.Resources.Requests)
			requireAmounts(t, want.Limits, pod.Spec.Resources.Limits)
		})
	}
	whole := decodeOne(t, manifest("p", "  resources: {limits: {cpu: 1, memory: 64Mi}}"), origin)
	require.Equal(t, corev1.PodQOSGuaranteed, qos.Class(whole), "its requests are its limits")
}

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func requireAmounts(t *testing.T, want, got corev1.ResourceList) {
	t.Helper()
	require.Len(t, got, len(want), "%v", got)
	for name, amount := range want {
		require.Zero(t, amount.Cmp(got[name]), "%s: %v", name, got)
	}
}
