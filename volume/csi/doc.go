// Package csi is the volume plugin for CSI drivers: it makes the node calls of the Container Storage Interface for
// PersistentVolumes and for inline ephemeral volumes, as file systems and as block devices.
//
// [Drivers] holds the drivers of this node; kubelet/csinode registers them. [Plugin] makes the calls. Before each
// call that has to be undone, it writes a small file, vol_data.json, with the format and path of Kubernetes' kubelet,
// so that a process that knows nothing else can undo the call.
package csi
