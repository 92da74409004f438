package volumemanager

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/emptydir"
	"github.com/berth-dev/berth/volume/projected"
)

// usedAs reports whether containers of the Pod use the volume as a directory, and whether as a block device.
func usedAs(pod *corev1.Pod, name string) (asMount, asDevice bool) {
	for container := range podutil.Containers(&pod.Spec) {
		for i := range container.VolumeMounts {
			asMount = asMount || container.VolumeMounts[i].Name == name
		}
		for i := range container.VolumeDevices {
			asDevice = asDevice || container.VolumeDevices[i].Name == name
		}
	}
	return asMount, asDevice
}

// usedVolumes lists the volumes that containers of the Pod use, without images, which the container runtime mounts.
func usedVolumes(pod *corev1.Pod) []*corev1.Volume {
	used := make(map[string]bool)
	for container := range podutil.Containers(&pod.Spec) {
		for i := range container.VolumeMounts {
			used[container.VolumeMounts[i].Name] = true
		}
		for i := range container.VolumeDevices {
			used[container.VolumeDevices[i].Name] = true
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

// Supported returns a volume.UnsupportedError that names the field if the Pod uses a volume that this node cannot set up,
// as far as the Pod itself shows. The volumes of claims are checked by Mount.
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
	if !m.config.NoAPIServer {
		return nil
	}
	return projected.CheckSources(spec)
}
