package admission

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/internal/resourcename"
	"github.com/berth-dev/berth/kubelet/status"
)

// shortage is a resource of which the other Pods leave less than a Pod requests. CPU is in thousandths.
type shortage struct {
	name                      corev1.ResourceName
	requested, used, capacity int64
}

// missing returns how much has to become free.
func (s shortage) missing() int64 { return s.requested - (s.capacity - s.used) }

// checkResources rejects a Pod whose requests exceed what the other Pods leave of the node.
func (a *Admitter) checkResources(pod *corev1.Pod, others []*corev1.Pod) *status.Failure {
	short := a.shortages(pod, others)
	if len(short) == 0 {
		return nil
	}
	first := short[0]
	return reject("OutOf"+string(first.name), "Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
		first.name, first.requested, first.used, first.capacity)
}

// resourceOrder has the resources that are compared first, as the scheduler does.
var resourceOrder = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}

// shortages returns what the other Pods leave too little of for the Pod, the number of Pods first.
func (a *Admitter) shortages(pod *corev1.Pod, others []*corev1.Pod) []shortage {
	var out []shortage
	if used := int64(len(others)); used+1 > a.config.MaxPods {
		out = append(out, shortage{corev1.ResourcePods, 1, used, a.config.MaxPods})
	}
	allocatable := a.allocatable()
	if allocatable == nil {
		return out
	}
	requests := podRequests(pod)
	names := slices.SortedFunc(maps.Keys(requests), func(a, b corev1.ResourceName) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b))
	})
	used := map[corev1.ResourceName]int64{}
	for _, other := range others {
		for name, amount := range podRequests(other) {
			used[name] += amount
		}
	}
	for _, name := range names {
		_, known := allocatable[name]
		switch {
		case !known && !resourcename.IsHugePages(name):
			continue // others count it, like a resource of the whole cluster; but the node has all huge pages that it reports
		case a.deps.Managed != nil && a.deps.Managed(name):
			continue
		}
		s := shortage{name, requests[name], used[name], amountOf(allocatable, name)}
		if s.requested > 0 && s.missing() > 0 {
			out = append(out, s)
		}
	}
	return out
}

func rank(name corev1.ResourceName) int {
	if at := slices.Index(resourceOrder, name); at >= 0 {
		return at
	}
	return len(resourceOrder)
}

// allocatable returns what Pods may use: what this process measures and manages, and the extended resources that only the Node lists, because
// an administrator has written them to its status. It is nil while the machine cannot be read.
func (a *Admitter) allocatable() corev1.ResourceList {
	own, node := a.deps.Allocatable(), a.deps.Node()
	if own == nil || node == nil {
		return own
	}
	all := maps.Clone(own)
	for name, amount := range node.Status.Allocatable {
		if _, known := own[name]; !known && resourcename.IsExtended(name) {
			all[name] = amount
		}
	}
	return all
}

// podRequests returns what a Pod requests of the resources that the node counts, of CPU in thousandths.
func podRequests(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	list := resource.PodRequests(pod, resource.PodResourcesOptions{})
	out := make(map[corev1.ResourceName]int64, len(list))
	for name := range list {
		if !isClaimed(pod, name) {
			out[name] = amountOf(list, name)
		}
	}
	return out
}

func amountOf(list corev1.ResourceList, name corev1.ResourceName) int64 {
	quantity := list[name]
	if name == corev1.ResourceCPU {
		return quantity.MilliValue()
	}
	return quantity.Value()
}

// isClaimed reports whether the scheduler has allocated a ResourceClaim for an extended resource of a Pod: it is none of those that the node
// counts, even if a device plugin provides, or has provided, others of that name.
func isClaimed(pod *corev1.Pod, name corev1.ResourceName) bool {
	claimed := pod.Status.ExtendedResourceClaimStatus
	return claimed != nil && slices.ContainsFunc(claimed.RequestMappings, func(r corev1.ContainerExtendedResourceRequest) bool {
		return r.ResourceName == string(name)
	})
}
