package runtimehelper

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/volumemanager"
)

// volumeGroupAnnotation is the annotation of a PersistentVolume whose content belongs to a group.
const volumeGroupAnnotation = "pv.beta.kubernetes.io/gid"

// SupplementalGroups returns the groups of the Pod's mounted PersistentVolumes, without those that the Pod lists itself.
func (h *Helper) SupplementalGroups(pod *corev1.Pod) []int64 {
	return supplementalGroups(pod, h.deps.Volumes.Volumes(pod.UID))
}

func supplementalGroups(pod *corev1.Pod, mounted map[string]volumemanager.Mounted) []int64 {
	var volumes []*corev1.PersistentVolume
	for _, v := range mounted {
		if v.Spec.PV != nil {
			volumes = append(volumes, v.Spec.PV)
		}
	}
	return groupsOf(pod, volumes)
}

// groupsOf returns the groups of the volumes, sorted, without those that the Pod lists itself.
func groupsOf(pod *corev1.Pod, volumes []*corev1.PersistentVolume) []int64 {
	var own, groups []int64
	if pod.Spec.SecurityContext != nil {
		own = pod.Spec.SecurityContext.SupplementalGroups
	}
	for _, pv := range volumes {
		gid, err := strconv.ParseInt(pv.Annotations[volumeGroupAnnotation], 10, 64)
		if err == nil && gid > 0 && !slices.Contains(own, gid) && !slices.Contains(groups, gid) {
			groups = append(groups, gid)
		}
	}
	slices.Sort(groups)
	return groups
}
