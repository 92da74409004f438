package kubelet

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/status"
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

// evictOutgrown ends a Pod that has outgrown a limit of its storage.
func (k *Kubelet) evictOutgrown(uid types.UID, message string) {
	const grace = 1 // seconds, as in every eviction that cannot wait
	for _, pod := range k.workers.Pods() {
		if pod.UID == uid && pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodFailed {
			k.deps.Recorder.Event(pod, corev1.EventTypeWarning, "Evicted", message)
		}
	}
	k.workers.Evict(uid, status.Failure{Reason: "Evicted", Message: message, Detail: outgrown}, ptr.To[int64](grace))
}
