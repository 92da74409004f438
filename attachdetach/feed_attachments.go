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

// attachment makes the actual state of the world match a VolumeAttachment that this controller did not just change:
// while an operation on the volume is pending, that operation settles it.
func (f *feeder) attachment(name string) {
	va, err := f.objects.attached.Get(name)
	if apierrors.IsNotFound(err) {
		f.attachmentGone(name)
		return
	}
	if err != nil {
		f.logListing("volume attachments", err)
		return
	}
	spec, pair, ok := f.pairOf(va)
	if !ok {
		return
	}
	f.attachments[name] = pair
	if f.postponed(pair, name) {
		return
	}
	attached, known := f.actual.GetAttachedVolume(pair.Volume, pair.Node)
	isAttached := va.DeletionTimestamp == nil && va.Status.Attached
	switch {
	case !known || attached.VolumeSpec == nil && !attached.Confirmed:
		if err := f.actual.MarkVolumeAsUncertain(pair.Volume, spec, pair.Node); err != nil {
			f.log.Error("cannot take over volume attachment", "attachment", name, "error", err)
		}
	case attached.Confirmed && !isAttached:
		f.actual.ApplyVerdict(pair.Volume, pair.Node, attached.Generation, operationexecutor.VerdictUncertain)
	case !attached.Confirmed && isAttached:
		f.retry(pair, spec)
	}
}

// attachmentGone is for a VolumeAttachment that is not there (any more): the one proof that nothing is attached.
func (f *feeder) attachmentGone(name string) {
	pair, ok := f.attachments[name]
	if !ok || f.postponed(pair, name) {
		return
	}
	delete(f.attachments, name)
	attached, known := f.actual.GetAttachedVolume(pair.Volume, pair.Node)
	if !known {
		return
	}
	f.actual.ApplyVerdict(pair.Volume, pair.Node, attached.Generation, operationexecutor.VerdictDetached)
	f.retry(pair, attached.VolumeSpec)
}

// retry ends the pause after failures, because what has happened makes success likely.
func (f *feeder) retry(pair cache.VolumeNode, spec *volume.Spec) {
	f.executor.ForgetFailures(pair.Volume, operationexecutor.OperationNode(spec, pair.Node))
	f.engine.Recheck(pair)
}

// postponed reports whether an operation on the pair's volume is pending; then the VolumeAttachment is looked at
// again after that.
func (f *feeder) postponed(pair cache.VolumeNode, name string) bool {
	if !f.executor.IsOperationPending(pair.Volume, pair.Node) {
		return false
	}
	if f.deferred[pair.Volume] == nil {
		f.deferred[pair.Volume] = make(map[string]struct{})
	}
	f.deferred[pair.Volume][name] = struct{}{}
	// It may have ended in between, and then nothing would bring this back.
	return f.executor.IsOperationPending(pair.Volume, pair.Node)
}

// pairOf finds the volume of a VolumeAttachment. Those of other kinds, of volumes that are gone and of drivers that need
// no attachment are left alone, as are those of nodes of which nobody can say whether another controller had them. Those
// of nodes that have another controller count: an exclusive volume that is there must not be attached here.
func (f *feeder) pairOf(va *storagev1.VolumeAttachment) (*volume.Spec, cache.VolumeNode, bool) {
	none := func(reason string) (*volume.Spec, cache.VolumeNode, bool) {
		f.log.Debug("volume attachment is left alone", "attachment", va.Name, "node", va.Spec.NodeName, "reason", reason)
		return nil, cache.VolumeNode{}, false
	}
	if va.Spec.Source.PersistentVolumeName == nil {
		return none("it names no persistent volume")
	}
	if f.config.NodeSelector != nil {
		if _, err := f.objects.nodes.Get(va.Spec.NodeName); err != nil {
			return none("its node is gone, and may have been another controller's")
		}
	}
	pv, err := f.objects.volumes.Get(*va.Spec.Source.PersistentVolumeName)
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
