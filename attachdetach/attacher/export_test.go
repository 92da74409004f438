package attacher

// CachedHandle returns the handle of the PersistentVolume in the attacher's cache, or "".
func (a *Attacher) CachedHandle(volume string) string {
	pv, err := a.volumes.Get(volume)
	if err != nil || pv.Spec.CSI == nil {
		return ""
	}
	return pv.Spec.CSI.VolumeHandle
}

// CachedAttachError reports whether the VolumeAttachment in the attacher's cache has an error.
func (a *Attacher) CachedAttachError(attachment string) bool {
	va, err := a.attachments.Get(attachment)
	return err == nil && va.Status.AttachError != nil
}

// CachedNode reports whether the attacher's cache has the CSINode.
func (a *Attacher) CachedNode(name string) bool {
	_, err := a.csiNodes.Get(name)
	return err == nil
}
