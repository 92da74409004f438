package attachdetach

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	toolscache "k8s.io/client-go/tools/cache"
)

// task names an object to sync. It does not say what has changed.
type task struct {
	kind taskKind
	name string // NAMESPACE/NAME for Pods and claims; the volume's unique name for operations
}

type taskKind int

const (
	kindPod taskKind = iota
	kindClaim
	kindVolume
	kindNode
	kindDriver
	kindAttachment
	kindOperation // an attach or detach of the volume has ended
)

// The indices of the caches.
const (
	indexByNode   = "node"   // Pods by spec.nodeName
	indexByClaim  = "claim"  // Pods by the claims they use, NAMESPACE/NAME
	indexByVolume = "volume" // VolumeAttachments by their PersistentVolume
)

// listers are the caches that the feeder reads.
type listers struct {
	pods              toolscache.Indexer
	claims            corelisters.PersistentVolumeClaimLister
	volumes           corelisters.PersistentVolumeLister
	nodes             corelisters.NodeLister
	deletedNodes      *lastReports // the handlers of the informers write them
	attachmentIndexer toolscache.Indexer
	attachmentLister  storagelisters.VolumeAttachmentLister
}

func newListers(factory informers.SharedInformerFactory) listers {
	core, storage := factory.Core().V1(), factory.Storage().V1()
	return listers{
		pods:   core.Pods().Informer().GetIndexer(),
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		nodes: core.Nodes().Lister(), deletedNodes: &lastReports{},
		attachmentIndexer: storage.VolumeAttachments().Informer().GetIndexer(), attachmentLister: storage.VolumeAttachments().Lister(),
	}
}

// watch adds the name of every object that changes to the queue. It returns checkers of whether the caches have synced.
func (a *components) watch(claimChanged func(namespace, name string)) ([]toolscache.DoneChecker, error) {
	core, storage := a.factory.Core().V1(), a.factory.Storage().V1()
	pods, attachments := core.Pods().Informer(), storage.VolumeAttachments().Informer()
	if err := pods.AddIndexers(toolscache.Indexers{indexByNode: podNode, indexByClaim: podClaims}); err != nil {
		return nil, fmt.Errorf("index pods: %w", err)
	}
	if err := attachments.AddIndexers(toolscache.Indexers{indexByVolume: attachmentVolume}); err != nil {
		return nil, fmt.Errorf("index volume attachments: %w", err)
	}
	var synced []toolscache.DoneChecker
	for _, source := range []struct {
		kind     taskKind
		informer toolscache.SharedIndexInformer
	}{
		{kindPod, pods},
		{kindClaim, core.PersistentVolumeClaims().Informer()},
		{kindVolume, core.PersistentVolumes().Informer()},
		{kindNode, core.Nodes().Informer()},
		{kindDriver, storage.CSIDrivers().Informer()},
		{kindAttachment, attachments},
	} {
		add := func(obj any) {
			if name, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				a.queue.Add(task{kind: source.kind, name: name})
			}
			if claimChanged != nil {
				notifyClaim(obj, claimChanged)
			}
		}
		registration, err := source.informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }, DeleteFunc: func(obj any) {
				a.populator.listers.deletedNodes.note(obj)
				add(obj)
			},
		})
		if err != nil {
			return nil, fmt.Errorf("add event handler: %w", err)
		}
		synced = append(synced, registration.HasSyncedChecker())
	}
	return synced, nil
}

// notifyClaim calls changed with the claim that the object is, or that the PersistentVolume is bound to.
func notifyClaim(obj any, changed func(namespace, name string)) {
	switch o := lastState(obj).(type) {
	case *corev1.PersistentVolumeClaim:
		changed(o.Namespace, o.Name)
	case *corev1.PersistentVolume:
		if o.Spec.ClaimRef != nil {
			changed(o.Spec.ClaimRef.Namespace, o.Spec.ClaimRef.Name)
		}
	}
}

// lastState returns the object that a handler of deletions got, also where the informer has missed the deletion.
func lastState(obj any) any {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		return gone.Obj
	}
	return obj
}

func podNode(obj any) ([]string, error) {
	if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
		return []string{pod.Spec.NodeName}, nil
	}
	return nil, nil
}

func podClaims(obj any) ([]string, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok || pod.Spec.NodeName == "" {
		return nil, nil
	}
	var keys []string
	for i := range pod.Spec.Volumes {
		if name := claimName(pod, &pod.Spec.Volumes[i]); name != "" {
			keys = append(keys, pod.Namespace+"/"+name)
		}
	}
	return keys, nil
}

func attachmentVolume(obj any) ([]string, error) {
	if va, ok := obj.(*storagev1.VolumeAttachment); ok && va.Spec.Source.PersistentVolumeName != nil {
		return []string{*va.Spec.Source.PersistentVolumeName}, nil
	}
	return nil, nil
}

// stripUnusedFields removes what the controller never reads, which is most of Pods and nodes by size.
func stripUnusedFields(obj any) (any, error) {
	if object, ok := obj.(metav1.Object); ok {
		object.SetManagedFields(nil)
	}
	switch o := obj.(type) {
	case *corev1.Pod:
		o.Labels, o.Annotations = nil, nil
		o.Spec = corev1.PodSpec{NodeName: o.Spec.NodeName, Volumes: attachableOnly(o.Spec.Volumes)}
		o.Status = corev1.PodStatus{
			Phase:                      o.Status.Phase,
			InitContainerStatuses:      statesOnly(o.Status.InitContainerStatuses),
			ContainerStatuses:          statesOnly(o.Status.ContainerStatuses),
			EphemeralContainerStatuses: statesOnly(o.Status.EphemeralContainerStatuses),
		}
	case *corev1.Node:
		o.Status = corev1.NodeStatus{
			Conditions: o.Status.Conditions, VolumesInUse: o.Status.VolumesInUse, VolumesAttached: o.Status.VolumesAttached,
		}
	}
	return obj, nil
}

// attachableOnly keeps the volumes that may have to be attached: all but those that live on the node itself.
func attachableOnly(volumes []corev1.Volume) []corev1.Volume {
	var kept []corev1.Volume
	for _, v := range volumes {
		if v.EmptyDir == nil && v.HostPath == nil && v.ConfigMap == nil && v.Secret == nil && v.Projected == nil &&
			v.DownwardAPI == nil {
			kept = append(kept, v)
		}
	}
	return kept
}

func statesOnly(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	kept := make([]corev1.ContainerStatus, 0, len(statuses))
	for _, status := range statuses {
		kept = append(kept, corev1.ContainerStatus{State: status.State})
	}
	return kept
}
