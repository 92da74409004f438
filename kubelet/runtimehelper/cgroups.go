package runtimehelper

import (
	"context"

	corev1 "k8s.io/api/core/v1"
)

// Cgroups implements podworker.Builder.
func (h *Helper) Cgroups(pod *corev1.Pod) ([]string, error) {
	dirs, err := h.deps.Cgroups.PodDirs(pod)
	if err != nil {
		return nil, err
	}
	return dirs.Containers()
}

// RemoveCgroup implements podworker.Builder.
func (h *Helper) RemoveCgroup(ctx context.Context, pod *corev1.Pod, id string) error {
	return h.deps.Cgroups.RemoveContainer(ctx, pod, id)
}
