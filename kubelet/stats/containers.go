package stats

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-dev/berth/internal/podutil"
)

// newest returns the last container of each name, in their order: a runtime may list those that ended before it, until they are removed.
func newest(all []*runtimeapi.ContainerStats) []*runtimeapi.ContainerStats {
	last := map[string]*runtimeapi.ContainerStats{}
	for _, c := range all {
		meta := c.GetAttributes().GetMetadata()
		if before := last[meta.GetName()]; before == nil || before.GetAttributes().GetMetadata().GetAttempt() < meta.GetAttempt() {
			last[meta.GetName()] = c
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(c *runtimeapi.ContainerStats) bool {
		return last[c.GetAttributes().GetMetadata().GetName()] != c
	})
}

// hasEnded returns a function that reports whether a container of the sandbox does not run: nothing of it is measured, or the Pod's status has its
// end. pod may be nil.
func hasEnded(sandbox *runtimeapi.PodSandboxStats, pod *corev1.Pod) func(statsapi.ContainerStats) bool {
	ended := map[string]bool{} // by name
	for _, c := range newest(sandbox.GetLinux().GetContainers()) {
		ended[c.GetAttributes().GetMetadata().GetName()] = endIsKnown(pod, c.GetAttributes())
	}
	return func(c statsapi.ContainerStats) bool {
		return ended[c.Name] || c.CPU == nil && c.Memory == nil && c.Swap == nil
	}
}

// endIsKnown reports whether the Pod's status has the end of the container. A status that is older than the container has not.
func endIsKnown(pod *corev1.Pod, c *runtimeapi.ContainerAttributes) bool {
	if pod == nil {
		return false
	}
	s := podutil.FindStatusOfAny(&pod.Status, c.GetMetadata().GetName())
	if s == nil {
		return false
	}
	for _, end := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
		if end == nil {
			continue
		}
		if _, id, found := strings.Cut(end.ContainerID, "://"); found && id == c.GetId() {
			return true
		}
	}
	return false
}
