package attachdetach

import (
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/attachdetach/csi"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// syncAttachment updates the actual state of the world from a VolumeAttachment that this controller did not just change:
// while an operation on the volume is pending, the end of that operation determines the state.
func (f *populator) syncAttachment(name string) {
	va, err := f.listers.attachmentLister.Get(name)
	if apierrors.IsNotFound(err) {
		f.onAttachmentDeleted(name)
		return
	}
	if err != nil {
		f.logListError("volume attachments", err)
		return
	}
	spec, pair, ok := f.resolveAttachment(va)
	if !ok {
		return
	}
	f.attachments.pairs[name] = pair
	if f.deferWhilePending(pair, name) {
		return
	}
	// An operation may have ended since the object was read. What is read after the state is not older than what the state shows.
	attached, known := f.actual.GetAttachedVolume(pair.Volume, pair.Node)
	if va, err = f.listers.attachmentLister.Get(name); err != nil {
		return // its deletion comes next
	}
	isAttached := va.DeletionTimestamp == nil && va.Status.Attached
	switch {
	case !known || attached.VolumeSpec == nil && !attached.Confirmed:
		if err := f.actual.MarkVolumeAsUncertain(pair.Volume, spec, pair.Node); err != nil {
			f.logger.Error("failed to add volume attachment", "attachment", name, "error", err)
		}
	case attached.Confirmed && !isAttached:
		f.actual.ApplyVerdict(pair.Volume, pair.Node, attached.Generation, operationexecutor.VerdictUncertain)
	case !attached.Confirmed && isAttached:
		f.retryNow(pair, spec)
	case f.foreign.has(pair.Node):
		f.engine.Recheck(pair) // volumes of which both controllers have uncertain attachments depend on it
	}
}

// onAttachmentDeleted handles a VolumeAttachment that does not exist: the only proof that nothing is attached.
func (f *populator) onAttachmentDeleted(name string) {
	pair, ok := f.attachments.pairs[name]
	if !ok || f.deferWhilePending(pair, name) {
		return
	}
	attached, known := f.actual.GetAttachedVolume(pair.Volume, pair.Node)
	// An attach may have created it again since the read that found nothing. What is read after the state is not older than what
	// the state shows.
	if _, err := f.listers.attachmentLister.Get(name); !apierrors.IsNotFound(err) {
		return // its creation comes next
	}
	delete(f.attachments.pairs, name)
	if !known {
		return
	}
	f.actual.ApplyVerdict(pair.Volume, pair.Node, attached.Generation, operationexecutor.VerdictDetached)
	f.retryNow(pair, attached.VolumeSpec)
}

// retryNow ends the pause after failures, because what has happened makes success likely.
func (f *populator) retryNow(pair cache.VolumeNode, spec *volume.Spec) {
	f.executor.ForgetFailures(pair.Volume, operationexecutor.OperationNode(spec, pair.Node))
	f.engine.Recheck(pair)
}

// deferWhilePending reports whether an operation on the pair's volume is pending; then the VolumeAttachment is looked at
// again after that.
func (f *populator) deferWhilePending(pair cache.VolumeNode, name string) bool {
	if !f.executor.IsOperationPending(pair.Volume, pair.Node) {
		return false
	}
	if f.attachments.deferred[pair.Volume] == nil {
		f.attachments.deferred[pair.Volume] = make(map[string]struct{})
	}
	f.attachments.deferred[pair.Volume][name] = struct{}{}
	// It may have ended in between, and then nothing would bring this back.
	return f.executor.IsOperationPending(pair.Volume, pair.Node)
}

// resolveAttachment finds the volume of a VolumeAttachment. Those of other kinds, of volumes that are gone and of drivers that need
// no attachment are ignored, as are those of deleted nodes that may have had another controller, unless this one created them. Those of
// nodes that have another controller count: an exclusive volume that is there must not be attached here.
func (f *populator) resolveAttachment(va *storagev1.VolumeAttachment) (*volume.Spec, cache.VolumeNode, bool) {
	none := func(reason string) (*volume.Spec, cache.VolumeNode, bool) {
		f.logger.Debug("volume attachment is left alone", "attachment", va.Name, "node", va.Spec.NodeName, "reason", reason)
		return nil, cache.VolumeNode{}, false
	}
	if va.Spec.Source.PersistentVolumeName == nil {
		return none("it names no persistent volume")
	}
	if f.config.NodeSelector != nil && va.Annotations[csi.AnnOwner] != f.config.owner() {
		if _, err := f.listers.nodes.Get(va.Spec.NodeName); err != nil {
			return none("its node is gone, and may have been another controller's")
		}
	}
	pv, err := f.listers.volumes.Get(*va.Spec.Source.PersistentVolumeName)
	if err != nil {
		return none("its persistent volume is gone")
	}
	spec := &volume.Spec{Name: pv.Name, PV: pv}
	if ok, err := f.plugin.CanAttach(spec); err != nil || !ok {
		return none("its volume needs no attachment")
	}
	node := types.NodeName(va.Spec.NodeName)
	if va.Name != csi.AttachmentName(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle, node) {
		return none("it has not the name that its volume and node give")
	}
	name := csi.VolumeName(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle)
	return spec, cache.VolumeNode{Volume: operationexecutor.UniqueVolumeName(csi.PluginName, name), Node: node}, true
}
