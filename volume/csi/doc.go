// Package csi is the volume plugin for CSI drivers: it makes the node calls of the Container Storage Interface for
// PersistentVolumes and for inline ephemeral volumes, as file systems and as block devices.
//
// [Drivers] knows the drivers of this node; who registers them is another's business (see kubelet/csinode). [Plugin]
// makes the calls. Before each call that leaves something behind it saves a small file, vol_data.json, of upstream's
// format and at upstream's place, so that the call can be undone by a process that knows nothing else.
package csi
