package status_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/status"
)

func findCondition(t *testing.T, s *corev1.PodStatus, kind corev1.PodConditionType) corev1.PodCondition {
	t.Helper()
	for _, c := range s.Conditions {
		if c.Type == kind {
			return c
		}
	}
	require.Failf(t, "no such condition", "%s", kind)
	return corev1.PodCondition{}
}

// Controllers take Initialized for a stage that a Pod leaves once. The init containers of a new sandbox run again.
func TestInitializedPodStaysSo(t *testing.T) {
	in := status.Input{
		Pod: withInit(pod(corev1.RestartPolicyAlways, "a"), false, "i"), Runtime: held(running("a", 0), exited("i", 0, 0)), Now: now,
	}
	in.Old = status.Compute(in)
	require.Equal(t, corev1.ConditionTrue, findCondition(t, &in.Old, corev1.PodInitialized).Status)
	in.Runtime = held(running("i", 1))
	in.Old.ContainerStatuses = nil // the runtime and the status have lost the container
	got := status.Compute(in)
	require.Equal(t, corev1.ConditionTrue, findCondition(t, &got, corev1.PodInitialized).Status)
	in.Old = corev1.PodStatus{}
	got = status.Compute(in)
	require.Equal(t, corev1.ConditionFalse, findCondition(t, &got, corev1.PodInitialized).Status)
}
