package runtimehelper

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// RemoveCgroup implements podworker.Builder.
func (h *Helper) RemoveCgroup(ctx context.Context, pod *corev1.Pod, id string) error {
	return h.deps.Cgroups.RemoveContainer(ctx, pod, id)
}
