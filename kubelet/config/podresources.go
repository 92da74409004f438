package config

import (
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/internal/resourcename"
)

// defaultPodResources sets what the API server sets of the resources of the Pod as a whole, where the Pod has some: the QoS class, the limits of
// the Pod's cgroup and what the Pod counts for on the node follow from them. Those of the containers are set already.
func defaultPodResources(pod *corev1.Pod) {
	own := pod.Spec.Resources
	if own == nil || len(own.Requests)+len(own.Limits) == 0 {
		return
	}
	for name, sum := range resourcehelper.AggregateContainerLimits(pod, resourcehelper.PodResourcesOptions{}) {
		if _, requested := own.Requests[name]; !requested && resourcename.IsHugePages(name) {
			setMissing(&own.Limits, name, sum)
		}
	}
	if len(own.Limits) == 0 {
		return
	}
	for name, sum := range resourcehelper.AggregateContainerRequests(pod, resourcehelper.PodResourcesOptions{}) {
		if resourcehelper.IsSupportedPodLevelResource(name) && !resourcename.IsHugePages(name) {
			setMissing(&own.Requests, name, sum)
		}
	}
	for name, limit := range own.Limits {
		if resourcehelper.IsSupportedPodLevelResource(name) {
			setMissing(&own.Requests, name, limit)
		}
	}
}
