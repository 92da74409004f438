package qos

import (
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/internal/podutil"
)

const (
	// KubeletOOMScoreAdj is the score adjustment of the kubelet itself, which is killed last.
	KubeletOOMScoreAdj = -999
	guaranteedScore    = -997
	bestEffortScore    = 1000
	// nodeCriticalClass is the priority class of Pods that a node cannot work without.
	nodeCriticalClass = "system-node-critical"
)

// OOMScoreAdj returns the score adjustment of a container's processes: the higher, the sooner they are killed when the
// node runs out of memory. capacity is the node's memory in bytes. Burstable containers are in between: the smaller a
// part of the node's memory a container requests, the sooner it is killed.
func OOMScoreAdj(pod *corev1.Pod, c *corev1.Container, capacity int64) int64 {
	if pod.Spec.PriorityClassName == nodeCriticalClass {
		return guaranteedScore
	}
	switch Class(pod) {
	case corev1.PodQOSGuaranteed:
		return guaranteedScore
	case corev1.PodQOSBestEffort:
		return bestEffortScore
	}
	if capacity <= 0 {
		return bestEffortScore - 1
	}
	share := sharedRequest(pod)
	score := 1000 - 1000*(c.Resources.Requests.Memory().Value()+share)/capacity
	if podutil.HasSidecar(&pod.Spec, c.Name) {
		// A sidecar serves the main containers, so it may not be killed before them.
		score = min(score, 1000-1000*(leastMainRequest(pod)+share)/capacity)
	}
	// Above every Guaranteed one, and below every BestEffort one.
	return min(max(score, 1000+guaranteedScore), bestEffortScore-1)
}

// leastMainRequest returns the smallest memory request of the main containers, in bytes.
func leastMainRequest(pod *corev1.Pod) int64 {
	least := int64(0)
	for i := range pod.Spec.Containers {
		request := pod.Spec.Containers[i].Resources.Requests.Memory().Value()
		if i == 0 || request < least {
			least = request
		}
	}
	return least
}

// sharedRequest returns each container's part, in bytes, of the memory that the Pod as a whole requests beyond the
// requests of its containers.
func sharedRequest(pod *corev1.Pod) int64 {
	containers := int64(len(pod.Spec.Containers) + len(pod.Spec.InitContainers))
	if pod.Spec.Resources == nil || pod.Spec.Resources.Requests.Memory().IsZero() || containers == 0 {
		return 0
	}
	own := resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{})
	return (pod.Spec.Resources.Requests.Memory().Value() - own.Memory().Value()) / containers
}
