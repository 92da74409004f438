package localstorage

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
)

// The signals of the limits, as metrics name them.
const (
	SignalEmptyDir  = "emptydirfs.limit"
	SignalPod       = "ephemeralpodfs.limit"
	SignalContainer = "ephemeralcontainerfs.limit"
)

// Usage is what a Pod occupies of the node's disks, in bytes.
type Usage struct {
	// Volumes are by the names of the volumes; Layers and Logs by those of the containers.
	Volumes, Layers, Logs map[string]int64
	// Hosts is the hosts file that all containers of the Pod have.
	Hosts int64
}

// total returns what the Pod occupies altogether.
func (u *Usage) total() int64 {
	sum := u.Hosts
	for _, part := range []map[string]int64{u.Volumes, u.Layers, u.Logs} {
		for _, bytes := range part {
			sum += bytes
		}
	}
	return sum
}

// Excess is a limit that a Pod exceeds, in the words of Kubernetes.
type Excess struct{ Signal, Message string }

// Limited reports whether the Pod has a limit that has to be measured, and whether its containers' file systems and logs count.
// The kernel itself enforces the limits of volumes in memory.
func Limited(pod *corev1.Pod) (limited, containers bool) {
	_, containers = resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})[corev1.ResourceEphemeralStorage]
	if containers {
		return true, true
	}
	for i := range pod.Spec.Volumes {
		if sizeLimit(&pod.Spec.Volumes[i]) > 0 {
			return true, false
		}
	}
	return false, false
}

// sizeLimit returns the limit of an emptyDir on disk, 0 for none.
func sizeLimit(v *corev1.Volume) int64 {
	if v.EmptyDir == nil || v.EmptyDir.Medium != corev1.StorageMediumDefault || v.EmptyDir.SizeLimit == nil {
		return 0
	}
	return max(v.EmptyDir.SizeLimit.Value(), 0)
}

// check returns the first limit that the Pod exceeds, nil if it exceeds none, and how much is left to the nearest one. Layers count
// for the limit of a container only if they are on the disk of the kubelet's directory.
func check(pod *corev1.Pod, used *Usage, layersHere bool) (excess *Excess, left int64) {
	left = -1
	exceeds := func(used, limit int64) bool {
		if rest := max(limit-used, 0); left < 0 || rest < left {
			left = rest
		}
		return used > limit && excess == nil
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if limit := sizeLimit(v); limit > 0 && exceeds(used.Volumes[v.Name], limit) {
			excess = &Excess{SignalEmptyDir, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, v.EmptyDir.SizeLimit.String())}
		}
	}
	limits := resourcehelper.PodLimits(pod, resourcehelper.PodResourcesOptions{})
	if limit, ok := limits[corev1.ResourceEphemeralStorage]; ok && exceeds(used.total(), limit.Value()) {
		excess = &Excess{SignalPod, fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		limit, ok := c.Resources.Limits[corev1.ResourceEphemeralStorage]
		if !ok || limit.IsZero() {
			continue
		}
		own := used.Logs[c.Name]
		if layersHere {
			own += used.Layers[c.Name]
		}
		if exceeds(own, limit.Value()) {
			excess = &Excess{SignalContainer, fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())}
		}
	}
	return excess, max(left, 0)
}
