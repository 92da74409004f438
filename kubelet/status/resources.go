package status

import (
	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/kubelet/cm"
)

// setPodResources sets the resources of the Pod as a whole: those that are allocated, and those in effect. While they
// change, those in effect are the former ones.
func setPodResources(in *Input, out *corev1.PodStatus) {
	out.AllocatedResources = resourcehelper.PodRequests(in.Pod, resourcehelper.PodResourcesOptions{})
	if in.Old.Resources != nil && in.Resize != nil && in.Resize.PodPending {
		out.Resources = in.Old.Resources
		return
	}
	out.Resources = EffectivePodResources(in.Pod, out.Phase)
}

// EffectivePodResources returns the resources that a Pod of this phase has as a whole, without a change under way. For a
// running one these are the limits that its cgroup enforces: the sum of those of its containers if all have one. For
// another one they are the sums.
func EffectivePodResources(pod *corev1.Pod, phase corev1.PodPhase) *corev1.ResourceRequirements {
	effective := &corev1.ResourceRequirements{
		Requests: resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}),
		Limits:   resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{}),
	}
	if phase != corev1.PodRunning {
		return effective
	}
	enforced := cm.PodLimits(pod, 0, cm.ResourceOptions{}) // which of them are set does not depend on the options
	own := pod.Spec.Resources
	for name := range effective.Limits {
		set := false
		switch name {
		case corev1.ResourceCPU:
			set = enforced.CPUQuota != 0
		case corev1.ResourceMemory:
			set = enforced.Memory != 0
		default:
			if own != nil {
				_, set = own.Limits[name]
			}
		}
		if !set {
			delete(effective.Limits, name)
		}
	}
	for name := range effective.Requests {
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory {
			continue
		}
		if own == nil {
			delete(effective.Requests, name)
		} else if _, set := own.Requests[name]; !set {
			delete(effective.Requests, name)
		}
	}
	return effective
}
