// Package csi attaches CSI volumes through VolumeAttachment objects: it makes one and waits until the driver's attacher
// has attached the volume, or deletes it and waits until the attacher has let it go. It speaks to no driver itself.
package csi
