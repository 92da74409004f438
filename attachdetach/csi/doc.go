// Package csi attaches CSI volumes through VolumeAttachment objects: it creates one and waits until the driver's
// attacher has attached the volume, or deletes it and waits until the attacher has detached it. It calls no driver itself.
package csi
