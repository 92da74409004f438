package status_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/kubelet/status"
)

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

// requireAmounts compares quantities by their value.
func requireAmounts(t *testing.T, want, got corev1.ResourceList) {
	t.Helper()
	require.Len(t, got, len(want), "%v", got)
	for name, amount := range want {
		have := got[name]
		require.Zero(t, amount.Cmp(have), "%s: want %s, got %s", name, amount.String(), have.String())
	}
}

// TestPodResources covers the resources of the Pod as a whole in its status.
func TestPodResources(t *testing.T) {
	sized := func(change func(p *corev1.Pod)) *corev1.Pod {
		p := pod(corev1.RestartPolicyAlways, "a", "b")
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
			Requests: amounts("cpu", "100m", "memory", "64Mi", "example.com/gpu", "1"), Limits: amounts("cpu", "200m", "memory", "64Mi"),
		}
		p.Spec.Containers[1].Resources.Limits = amounts("memory", "64Mi")
		change(p)
		return p
	}
	for name, c := range map[string]struct {
		change                      func(p *corev1.Pod)
		allocated, requests, limits corev1.ResourceList
	}{
		"sums of the containers; one has no CPU limit": {func(*corev1.Pod) {},
			amounts("cpu", "100m", "memory", "64Mi", "example.com/gpu", "1"), amounts("cpu", "100m", "memory", "64Mi"),
			amounts("memory", "128Mi")},
		"of the Pod": {func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{
				Requests: amounts("cpu", "300m", "memory", "1Gi", "hugepages-2Mi", "4Mi"),
				Limits:   amounts("cpu", "1", "memory", "1Gi", "hugepages-2Mi", "4Mi"),
			}
		}, amounts("cpu", "300m", "memory", "1Gi", "hugepages-2Mi", "4Mi", "example.com/gpu", "1"),
			amounts("cpu", "300m", "memory", "1Gi", "hugepages-2Mi", "4Mi"), amounts("cpu", "1", "memory", "1Gi", "hugepages-2Mi", "4Mi")},
		"none": {func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources, p.Spec.Containers[1].Resources = corev1.ResourceRequirements{}, corev1.ResourceRequirements{}
		}, nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := status.Compute(status.Input{
				Pod: sized(c.change), Runtime: held(running("a", 0), running("b", 0)), Prepared: true, Now: now,
			})
			require.Equal(t, corev1.PodRunning, got.Phase)
			requireAmounts(t, c.allocated, got.AllocatedResources)
			requireAmounts(t, c.requests, got.Resources.Requests)
			requireAmounts(t, c.limits, got.Resources.Limits)
		})
	}
	pending := status.Compute(status.Input{Pod: sized(func(*corev1.Pod) {}), Runtime: held(), Now: now})
	requireAmounts(t, amounts("cpu", "200m", "memory", "128Mi"), pending.Resources.Limits)
}
