package kubelet

import (
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/volumemanager"
)

// blockDevices are the volumes that the container gets as devices.
func blockDevices(c *corev1.Container, mounted map[string]volumemanager.Mounted) []*runtimeapi.Device {
	var devices []*runtimeapi.Device
	for _, want := range c.VolumeDevices {
		v, ok := mounted[want.Name]
		if !ok || !v.Block {
			continue // the wording of the container names it
		}
		device := &runtimeapi.Device{ContainerPath: want.DevicePath, HostPath: v.Path, Permissions: "mrw"}
		if v.ReadOnly {
			device.Permissions = "mr"
		}
		devices = append(devices, device)
	}
	return devices
}

// nodeChanged tells the rooms that follow the Node of its new state.
func (k *Kubelet) nodeChanged(n *corev1.Node) {
	k.volumes.NodeChanged(n)
	k.csiNode.NodeChanged(n)
}
