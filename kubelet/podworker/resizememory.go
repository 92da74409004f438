package podworker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
)

// checkMemory returns an error if the new resources would lower a memory limit below what the container or the Pod uses
// now: the kernel would reclaim that memory and then kill processes. It is the best that can be done: usage may still rise
// before the limit is set.
func (w *worker) checkMemory(ctx context.Context, pod *corev1.Pod, sandboxID string, todo []kuberuntime.Resize) error {
	lowered := loweredMemoryLimits(todo)
	own := pod.Spec.Resources
	if len(lowered) == 0 && (own == nil || own.Limits.Memory().IsZero()) || sandboxID == "" {
		return nil
	}
	resp, err := w.m.deps.Runtime.PodSandboxStats(ctx, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: sandboxID})
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("read memory usage: %w", err)
	}
	if err != nil {
		return nil // it has stopped
	}
	podLimit := cm.PodLimits(pod, 0, cm.ResourceOptions{}).Memory // the options do not matter for memory
	return compareMemory(lowered, podLimit, resp.GetStats().GetLinux())
}

// loweredMemoryLimits returns the new memory limits of the containers whose limit becomes lower, by their id.
func loweredMemoryLimits(todo []kuberuntime.Resize) map[string]int64 {
	lowered := map[string]int64{}
	for _, change := range todo {
		limit, now := change.Want.GetMemoryLimitInBytes(), change.Status.Resources.GetLinux().GetMemoryLimitInBytes()
		if limit > 0 && (now <= 0 || limit < now) {
			lowered[change.Status.ID] = limit
		}
	}
	return lowered
}

// compareMemory returns an error that names each limit that usage does not allow. Its text does not contain the usage, so
// that it stays the same from one attempt to the next. A podLimit of 0 means none; one that does not change is never below
// the usage.
func compareMemory(lowered map[string]int64, podLimit int64, usage *runtimeapi.LinuxPodSandboxStats) error {
	var problems []string
	if podLimit > 0 {
		switch used := usage.GetMemory().GetUsageBytes(); {
		case used == nil:
			problems = append(problems, "the Pod's memory usage is unknown")
		case used.Value > uint64(podLimit):
			problems = append(problems, fmt.Sprintf("the Pod would have its memory limit (%d) below current usage", podLimit))
		}
	}
	for _, c := range usage.GetContainers() {
		limit, ok := lowered[c.GetAttributes().GetId()]
		if !ok {
			continue
		}
		name := c.GetAttributes().GetMetadata().GetName()
		switch used := c.GetMemory().GetUsageBytes(); {
		case used == nil:
			problems = append(problems, fmt.Sprintf("the memory usage of container %q is unknown", name))
		case used.Value >= uint64(limit):
			problems = append(problems, fmt.Sprintf("container %q would have its memory limit (%d) below current usage", name, limit))
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return errors.New("memory limits are not lowered: " + strings.Join(problems, "; "))
}
