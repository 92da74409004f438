// Package attacher attaches and detaches the volumes of one CSI driver's VolumeAttachments by calling the driver's
// ControllerPublishVolume and ControllerUnpublishVolume, as the external-attacher sidecar does.
//
// Before it calls the driver, it adds a finalizer and annotations that record the publication to the VolumeAttachment, so
// that the volume is unpublished whatever is deleted or killed in between. With a driver that has nothing to publish, a
// VolumeAttachment counts as attached at once.
package attacher
