package qos

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/internal/podutil"
)

// computeResources are the resources that decide the class.
var computeResources = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// Class returns the Pod's class: the one in its status if it has one, because a class never changes, or else the one of
// its spec.
func Class(pod *corev1.Pod) corev1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	return Compute(pod)
}

// Compute returns the class of the Pod's spec: BestEffort if no container requests or limits CPU or memory, Guaranteed
// if every container limits both and requests as much, Burstable otherwise. Resources of the Pod as a whole replace
// those of its containers. Ephemeral containers do not count.
func Compute(pod *corev1.Pod) corev1.PodQOSClass {
	var parts []corev1.ResourceRequirements
	if r := pod.Spec.Resources; r != nil {
		parts = []corev1.ResourceRequirements{*r}
	} else {
		for c, kind := range podutil.Containers(&pod.Spec) {
			if kind != podutil.Ephemeral {
				parts = append(parts, c.Resources)
			}
		}
	}
	any, allLimited := false, true
	requests, limits := map[corev1.ResourceName]*resource.Quantity{}, map[corev1.ResourceName]*resource.Quantity{}
	for _, part := range parts {
		for _, name := range computeResources {
			any = addAmount(requests, name, part.Requests) || any
			limited := addAmount(limits, name, part.Limits)
			any = limited || any
			allLimited = allLimited && limited
		}
	}
	if !any {
		return corev1.PodQOSBestEffort
	}
	if !allLimited {
		return corev1.PodQOSBurstable
	}
	for _, name := range computeResources {
		request, limit := requests[name], limits[name]
		if request == nil || limit == nil || request.Cmp(*limit) != 0 {
			return corev1.PodQOSBurstable
		}
	}
	return corev1.PodQOSGuaranteed
}

// addAmount adds the list's amount of the resource to the sums, and reports whether there was a positive one.
func addAmount(sums map[corev1.ResourceName]*resource.Quantity, name corev1.ResourceName, list corev1.ResourceList) bool {
	amount, ok := list[name]
	if !ok || amount.Sign() <= 0 {
		return false
	}
	if sums[name] == nil {
		sums[name] = &resource.Quantity{}
	}
	sums[name].Add(amount)
	return true
}
