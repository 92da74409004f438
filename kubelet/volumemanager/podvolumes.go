package volumemanager

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/emptydir"
)

// containerVolumes is the part of a container of any kind that says which volumes it uses.
type containerVolumes struct {
	field   string // its path in the Pod
	mounts  []corev1.VolumeMount
	devices []corev1.VolumeDevice
}

func listContainers(pod *corev1.Pod) []containerVolumes {
	var all []containerVolumes
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		all = append(all, containerVolumes{fmt.Sprintf("spec.initContainers[%d]", i), c.VolumeMounts, c.VolumeDevices})
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		all = append(all, containerVolumes{fmt.Sprintf("spec.containers[%d]", i), c.VolumeMounts, c.VolumeDevices})
	}
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		all = append(all, containerVolumes{fmt.Sprintf("spec.ephemeralContainers[%d]", i), c.VolumeMounts, c.VolumeDevices})
	}
	return all
}

// usedAs reports whether containers of the Pod use the volume as a directory, and whether as a block device.
func usedAs(pod *corev1.Pod, name string) (asMount, asDevice bool) {
	for _, container := range listContainers(pod) {
		for i := range container.mounts {
			asMount = asMount || container.mounts[i].Name == name
		}
		for i := range container.devices {
			asDevice = asDevice || container.devices[i].Name == name
		}
	}
	return asMount, asDevice
}

// usedVolumes is the volumes that some container of the Pod uses, without those that the runtime mounts by itself
// (images).
func usedVolumes(pod *corev1.Pod) []*corev1.Volume {
	used := make(map[string]bool)
	for _, container := range listContainers(pod) {
		for i := range container.mounts {
			used[container.mounts[i].Name] = true
		}
		for i := range container.devices {
			used[container.devices[i].Name] = true
		}
	}
	var volumes []*corev1.Volume
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; used[v.Name] && v.Image == nil {
			volumes = append(volumes, v)
		}
	}
	return volumes
}

// Supported returns an error, a volume.UnsupportedError that names the field, if the Pod asks for a volume that this
// node agent cannot set up, as far as the Pod itself tells. What a claim turns out to be is known only by Mount.
func (m *Manager) Supported(pod *corev1.Pod) error {
	for _, v := range usedVolumes(pod) {
		_, asDevice := usedAs(pod, v.Name)
		if asDevice && v.PersistentVolumeClaim == nil && v.Ephemeral == nil {
			return volume.Unsupported(volume.Spec{Name: v.Name, Volume: v}, volume.SourceField(volume.Spec{Volume: v}),
				"volumeDevices names it, but only a claim can be used as a block device")
		}
		if err := m.supported(v); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) supported(v *corev1.Volume) error {
	if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
		return nil
	}
	spec := volume.Spec{Name: v.Name, Volume: v}
	if _, err := m.deps.Plugins.Find(spec); err != nil {
		return err
	}
	if v.EmptyDir != nil && !emptydir.SupportsMedium(v.EmptyDir.Medium) {
		return volume.Unsupported(spec, "emptyDir.medium",
			fmt.Sprintf("medium %q is not supported; use \"\", \"Memory\" or \"HugePages\"", v.EmptyDir.Medium))
	}
	if v.Projected != nil {
		for i := range v.Projected.Sources {
			source := &v.Projected.Sources[i]
			if source.ClusterTrustBundle != nil {
				return volume.Unsupported(spec, fmt.Sprintf("projected.sources[%d].clusterTrustBundle", i),
					"this source is not supported")
			}
			if source.PodCertificate != nil {
				return volume.Unsupported(spec, fmt.Sprintf("projected.sources[%d].podCertificate", i),
					"this source is not supported")
			}
		}
	}
	return nil
}
