package eviction

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Usage is what the Pods use, by UID. A Pod that could not be measured is missing.
type Usage map[string]*statsapi.PodStats

// rank returns the Pods in the order in which they are evicted for the signal: first those that could not be measured, then
// those that use more than they request, of these the one with the lowest priority, and of these the one that exceeds its
// request most. Process IDs are not requested: there the priority decides, and then the number of processes.
func rank(signal Signal, layout Layout, pods []*corev1.Pod, usage Usage) []*corev1.Pod {
	type candidate struct {
		pod               *corev1.Pod
		measured, exceeds bool
		priority          int32
		over              int64
	}
	list := make([]candidate, 0, len(pods))
	for _, pod := range pods {
		c := candidate{pod: pod, priority: priority(pod)}
		if stats := usage[string(pod.UID)]; stats != nil {
			used := podUsage(signal, layout.parts(signal), pod, stats)
			c.measured, c.over = true, used-request(signal, pod)
			c.exceeds = c.over > 0 && signal != PIDAvailable
		}
		list = append(list, c)
	}
	first := func(a bool) int {
		if a {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(list, func(a, b candidate) int {
		if signal == PIDAvailable {
			return cmp.Or(cmp.Compare(a.priority, b.priority), cmp.Compare(first(!a.measured), first(!b.measured)), cmp.Compare(b.over, a.over))
		}
		return cmp.Or(cmp.Compare(first(!a.measured), first(!b.measured)), cmp.Compare(first(a.exceeds), first(b.exceeds)),
			cmp.Compare(a.priority, b.priority), cmp.Compare(b.over, a.over))
	})
	out := make([]*corev1.Pod, len(list))
	for i := range list {
		out[i] = list[i].pod
	}
	return out
}

func priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// request returns how much of the signal's resource the Pod requests. Inodes and process IDs cannot be requested. The overhead of its
// RuntimeClass counts for a Pod that requests something: it is no request of a Pod that is content with what is left.
func request(signal Signal, pod *corev1.Pod) int64 {
	name := signal.resource()
	quantity := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{ExcludeOverhead: true})[name]
	if quantity.IsZero() {
		return 0
	}
	quantity.Add(pod.Spec.Overhead[name])
	return quantity.Value()
}

// podUsage returns how much of the signal's resource the Pod uses.
func podUsage(signal Signal, parts diskParts, pod *corev1.Pod, stats *statsapi.PodStats) int64 {
	switch signal.resource() {
	case corev1.ResourceMemory:
		if stats.Memory == nil {
			return 0
		}
		return number(stats.Memory.WorkingSetBytes)
	case resourcePIDs:
		if stats.ProcessStats == nil {
			return 0
		}
		return number(stats.ProcessStats.ProcessCount)
	}
	of := func(fs *statsapi.FsStats) int64 {
		switch {
		case fs == nil:
			return 0
		case signal.resource() == resourceInodes:
			return number(fs.InodesUsed)
		}
		return number(fs.UsedBytes)
	}
	var sum int64
	for i := range stats.Containers {
		if parts.layers {
			sum += of(stats.Containers[i].Rootfs)
		}
		if parts.logs {
			sum += of(stats.Containers[i].Logs)
		}
	}
	if !parts.volumes {
		return sum
	}
	for i := range stats.VolumeStats {
		if volume := findVolume(pod, stats.VolumeStats[i].Name); volume != nil && IsOnNodeDisk(volume) {
			sum += of(&stats.VolumeStats[i].FsStats)
		}
	}
	return sum
}

func findVolume(pod *corev1.Pod, name string) *corev1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}

// IsOnNodeDisk reports whether a volume belongs to its Pod alone and is on the disk of the Pods' directories. Secrets and
// projected volumes are in memory.
func IsOnNodeDisk(v *corev1.Volume) bool {
	if v.EmptyDir != nil {
		return v.EmptyDir.Medium == corev1.StorageMediumDefault
	}
	return v.ConfigMap != nil || v.DownwardAPI != nil || v.GitRepo != nil
}

func number(n *uint64) int64 {
	if n == nil {
		return 0
	}
	return int64(*n)
}
