package runtimehelper

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

// TestGroupsPolicy covers what the runtime reports: nothing yet, that it supports the policy, and that it does not.
func TestGroupsPolicy(t *testing.T) {
	strict := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{
		SupplementalGroupsPolicy: ptr.To(corev1.SupplementalGroupsPolicyStrict)}}}
	merge := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{
		SupplementalGroupsPolicy: ptr.To(corev1.SupplementalGroupsPolicyMerge)}}}
	var h Helper
	require.NoError(t, h.GroupsPolicy(strict), "it is checked again when the sandbox is created")
	h.runtime.Store(&runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true})
	require.NoError(t, h.GroupsPolicy(strict))
	h.runtime.Store(&runtimeapi.RuntimeFeatures{})
	require.ErrorContains(t, h.GroupsPolicy(strict), "SupplementalGroupsPolicy=Strict is not supported in this node")
	require.NoError(t, h.GroupsPolicy(merge))
	require.NoError(t, h.GroupsPolicy(&corev1.Pod{}))
}
