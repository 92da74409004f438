package attachdetach

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/attachdetach/csi"
	"github.com/berth-dev/berth/attachdetach/reconciler"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// populator updates the desired and the actual state of the world from the objects of the API. Only the goroutine that
// runs recover and then run.
type populator struct {
	logger   *slog.Logger
	clock    clock.Clock
	config   Config
	queue    workqueue.TypedInterface[task]
	desired  *cache.Desired
	actual   *cache.Actual
	executor *operationexecutor.Executor
	engine   *reconciler.Engine
	plugin   *csi.Plugin
	listers  listers

	// pods is what was made of each Pod, by NAMESPACE/NAME; nodes what was last seen of each node.
	pods  map[string]*podState
	nodes map[types.NodeName]nodeState
	// unmanaging is the nodes that are to be managed no longer, but still have Pods with volumes.
	unmanaging map[types.NodeName]struct{}
	// foreign is the nodes that another controller looks after. The engine reads it too.
	foreign     *nodeSet
	attachments foundAttachments
}

// foundAttachments are the VolumeAttachments that were seen, by their names.
type foundAttachments struct {
	pairs map[string]cache.VolumeNode
	// deferred are, by volume, those that are synced again when no operation on the volume is pending.
	deferred map[corev1.UniqueVolumeName]map[string]struct{}
}

// rebuild fills the worlds after the caches are complete: what is attached first, so that nothing is attached twice.
func (f *populator) rebuild() {
	nodes, err := f.listers.nodes.List(everything)
	f.logListError("nodes", err)
	for _, node := range nodes {
		f.rebuildNode(node)
	}
	for _, node := range nodes {
		f.syncNode(node.Name)
	}
	for _, obj := range f.listers.attachmentIndexer.List() {
		if va, ok := obj.(*storagev1.VolumeAttachment); ok {
			f.syncAttachment(va.Name)
			f.rebuildSpec(va)
		}
	}
	for _, node := range nodes { // again, for what only the VolumeAttachments show
		f.actual.SetVolumesMountedByNode(node.Status.VolumesInUse, types.NodeName(node.Name))
	}
	for _, key := range f.listers.pods.ListKeys() {
		f.syncPod(key)
	}
}

func (f *populator) logListError(what string, err error) {
	if err != nil {
		f.logger.Error("failed to list from the cache", "objects", what, "error", err)
	}
}

// rebuildNode takes over what an earlier controller wrote into the node's status. Only the names are known.
func (f *populator) rebuildNode(node *corev1.Node) {
	if !f.isSelected(node) {
		return
	}
	for _, attached := range node.Status.VolumesAttached {
		_, err := f.actual.AddVolumeNode(attached.Name, nil, types.NodeName(node.Name), attached.DevicePath, true)
		if err != nil {
			f.logger.Error("failed to add attached volume", "volume", attached.Name, "node", node.Name, "error", err)
		}
	}
	// This is what the status says, so there is nothing to write.
	f.actual.GetVolumesToReportAttachedForNode(types.NodeName(node.Name))
	f.actual.ForgetNode(types.NodeName(node.Name))
}

// rebuildSpec sets the volume of an attachment that is known by name only. Nothing runs yet that could change it.
func (f *populator) rebuildSpec(va *storagev1.VolumeAttachment) {
	spec, pair, ok := f.resolveAttachment(va)
	if !ok {
		return
	}
	attached, ok := f.actual.GetAttachedVolume(pair.Volume, pair.Node)
	if !ok || attached.VolumeSpec != nil {
		return
	}
	_, err := f.actual.AddVolumeNode(pair.Volume, spec, pair.Node, attached.DevicePath, attached.Confirmed)
	if err != nil {
		f.logger.Error("failed to set the volume of an attachment", "attachment", va.Name, "error", err)
	}
}

// run works on the queue until it is shut down, and looks at everything every ResyncPeriod.
func (f *populator) run(ctx context.Context) {
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	sweeping.Go(contain.Loop(ctx, "attachdetach.resync", "", f.resyncPeriodically))
	for {
		next, down := f.queue.Get()
		if down {
			return
		}
		f.process(next)
		f.queue.Done(next)
	}
}

// resyncPeriodically puts everything into the queue now and then, in case an event was lost.
func (f *populator) resyncPeriodically(ctx context.Context) {
	timer := f.clock.NewTimer(f.config.ResyncPeriod)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		for kind, store := range map[taskKind]toolscache.Indexer{
			kindPod: f.listers.pods, kindAttachment: f.listers.attachmentIndexer,
		} {
			for _, name := range store.ListKeys() {
				f.queue.Add(task{kind: kind, name: name})
			}
		}
		timer.Reset(f.config.ResyncPeriod)
	}
}

// process looks at one thing.
func (f *populator) process(next task) {
	switch next.kind {
	case kindPod:
		f.syncPod(next.name)
	case kindClaim:
		f.syncPodsByIndex(indexByClaim, next.name)
	case kindVolume:
		f.syncVolume(next.name)
	case kindNode:
		f.syncNode(next.name)
	case kindDriver:
		f.syncAll()
	case kindAttachment:
		f.syncAttachment(next.name)
	case kindOperation:
		f.onOperationDone(corev1.UniqueVolumeName(next.name))
	}
}

// syncPodsByIndex looks at the Pods that an index lists.
func (f *populator) syncPodsByIndex(index, value string) {
	keys, err := f.listers.pods.IndexKeys(index, value)
	f.logListError("pods", err)
	for _, key := range keys {
		f.syncPod(key)
	}
}

// syncVolume looks at what depends on a PersistentVolume: Pods through the claim, and VolumeAttachments.
func (f *populator) syncVolume(name string) {
	if pv, err := f.listers.volumes.Get(name); err == nil && pv.Spec.ClaimRef != nil {
		f.syncPodsByIndex(indexByClaim, pv.Spec.ClaimRef.Namespace+"/"+pv.Spec.ClaimRef.Name)
	}
	keys, err := f.listers.attachmentIndexer.IndexKeys(indexByVolume, name)
	f.logListError("volume attachments", err)
	for _, key := range keys {
		f.syncAttachment(key)
	}
}

// syncAll looks at everything, because a CSIDriver that came or went changes which volumes are attachable at all.
func (f *populator) syncAll() {
	for _, key := range f.listers.pods.ListKeys() {
		f.syncPod(key)
	}
	for _, key := range f.listers.attachmentIndexer.ListKeys() {
		f.syncAttachment(key)
	}
}

// onOperationDone looks at the VolumeAttachments that changed while the operation was pending. A new attachment counts as
// mounted until its node reports otherwise; but the node's last report may be older than the attachment, so it is applied
// again.
func (f *populator) onOperationDone(name corev1.UniqueVolumeName) {
	for _, node := range f.actual.GetNodesForPossiblyAttachedVolume(name) {
		if state, known := f.nodes[node]; known {
			f.actual.SetVolumeMountedByNode(name, node, slices.Contains(state.inUse, name))
		}
	}
	again := f.attachments.deferred[name]
	delete(f.attachments.deferred, name)
	for attachment := range again {
		f.syncAttachment(attachment)
	}
}
