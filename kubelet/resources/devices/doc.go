// Package devices is the device manager: device plugins register the node's devices with it, and it gives them to containers.
//
// A container's devices are chosen when its Pod is admitted, and the plugin is asked to allocate them before the container is
// created, so that a slow plugin delays no other Pod. What was allocated is in the file kubelet_internal_checkpoint, whose name and
// content are those of upstream's kubelet.
package devices
