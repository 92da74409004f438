// Package attacher is the other side of package csi: it answers the VolumeAttachments of one CSI driver by calling the
// driver's ControllerPublishVolume and ControllerUnpublishVolume, as the external-attacher sidecar does.
//
// A VolumeAttachment gets a finalizer, and notes of what was published where, before the driver is called; so that the
// volume is unpublished whatever is deleted or killed in between.
package attacher
