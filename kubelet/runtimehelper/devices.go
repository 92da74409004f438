package runtimehelper

import (
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/volumemanager"
)

// blockDevices returns the block volumes that the container gets as devices.
func blockDevices(c *corev1.Container, mounted map[string]volumemanager.Mounted) []*runtimeapi.Device {
	var devices []*runtimeapi.Device
	for _, device := range c.VolumeDevices {
		v, ok := mounted[device.Name]
		if !ok || !v.Block {
			continue // building the mounts reports it
		}
		out := &runtimeapi.Device{ContainerPath: device.DevicePath, HostPath: v.Path, Permissions: "mrw"}
		if v.ReadOnly {
			out.Permissions = "mr"
		}
		devices = append(devices, out)
	}
	return devices
}
