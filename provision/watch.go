package provision

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	storagehelpers "k8s.io/component-helpers/storage/volume"
)

// informerSet is the informers that a controller reads from: the caller's, and its own where the caller gave none.
type informerSet struct {
	factory                  informers.SharedInformerFactory
	claims, volumes, classes cache.SharedInformer
	nodes                    cache.SharedInformer // nil: nodes are read from the API
	synced                   []cache.DoneChecker
	unregister               []func()
}

func newInformerSet(client kubernetes.Interface, s *settings) informerSet {
	set := informerSet{
		factory: informers.NewSharedInformerFactory(client, s.resyncPeriod),
		claims:  s.claims, volumes: s.volumes, classes: s.classes, nodes: s.nodes,
	}
	if s.claims == nil {
		set.claims = set.factory.Core().V1().PersistentVolumeClaims().Informer()
	}
	if s.volumes == nil {
		set.volumes = set.factory.Core().V1().PersistentVolumes().Informer()
	}
	if s.classes == nil {
		set.classes = set.factory.Storage().V1().StorageClasses().Informer()
	}
	return set
}

// sync starts the controller's own informers, and waits until all have listed and the handlers have seen what they listed.
func (s *informerSet) sync(ctx context.Context) bool {
	s.factory.StartWithContext(ctx)
	synced := s.synced
	if s.nodes != nil {
		synced = append(synced, s.nodes.HasSyncedChecker())
	}
	return cache.WaitFor(ctx, "", synced...)
}

// subscribe registers the handlers that fill the work queues.
func (e *engine) subscribe() error {
	for _, s := range []struct {
		what     string
		informer cache.SharedInformer
		handler  cache.ResourceEventHandler
	}{
		{"claims", e.informers.claims, cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { e.onClaim(nil, obj) },
			UpdateFunc: e.onClaim,
			DeleteFunc: e.onClaimDeleted,
		}},
		{"volumes", e.informers.volumes, cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { e.onVolume(nil, obj) },
			UpdateFunc: e.onVolume,
			DeleteFunc: e.onVolumeDeleted,
		}},
		{"classes", e.informers.classes, cache.ResourceEventHandlerFuncs{
			AddFunc:    e.onClass,
			UpdateFunc: func(_, obj any) { e.onClass(obj) },
		}},
	} {
		registration, err := s.informer.AddEventHandlerWithResyncPeriod(s.handler, e.settings.resyncPeriod)
		if err != nil {
			e.unsubscribe()
			return fmt.Errorf("watch %s: %w", s.what, err)
		}
		e.informers.synced = append(e.informers.synced, registration.HasSyncedChecker())
		e.informers.unregister = append(e.informers.unregister, func() {
			if err := s.informer.RemoveEventHandler(registration); err != nil {
				e.logger.Error("failed to stop watching", "resource", s.what, "error", err)
			}
		})
	}
	return nil
}

func (e *engine) unsubscribe() {
	for _, f := range e.informers.unregister {
		f()
	}
	e.informers.unregister = nil
}

func (e *engine) onClaim(old, obj any) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return
	}
	e.claims.add(claim)
	st := e.states.get(claim.UID)
	if before, ok := old.(*corev1.PersistentVolumeClaim); ok {
		if st != nil && isResync(before, claim) {
			st.resync.Store(true)
		}
		if before.UID != claim.UID {
			e.onClaimDeleted(before) // deleted and created again between two events
		}
	}
	if st == nil && claim.Spec.VolumeName != "" && !e.hasIntentInCache(claim) {
		return // most claims are done; they cost nothing
	}
	e.queues.claims.Add(string(claim.UID))
}

// isResync returns whether the informer repeats an object that has not changed. The resourceVersion alone does not say so:
// with client-go's fake clientset it stays the same when the object changes.
func isResync[T metav1.Object](before, now T) bool {
	return any(before) == any(now) ||
		before.GetResourceVersion() == now.GetResourceVersion() && equality.Semantic.DeepEqual(before, now)
}

func (e *engine) onClaimDeleted(obj any) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok {
		e.claims.remove(claim.UID)
		e.queues.claims.Add(string(claim.UID))
	}
}

func (e *engine) onVolume(old, obj any) {
	pv, ok := obj.(*corev1.PersistentVolume)
	if !ok {
		return
	}
	e.volumes.add(pv)
	if ref := pv.Spec.ClaimRef; ref != nil && old == nil && e.states.get(ref.UID) != nil {
		e.queues.claims.Add(string(ref.UID))
	}
	if before, ok := old.(*corev1.PersistentVolume); ok {
		if before.UID != pv.UID {
			e.deletions.remove(before.Name)
		}
		e.deletions.resync(pv.Name, isResync(before, pv))
	}
	if e.reclaims(pv) && e.volumeStep(pv) != volumeIdle {
		e.queues.volumes.Add(pv.Name)
	}
	if before, ok := old.(*corev1.PersistentVolume); e.isLeftToMigration(pv) && !(ok && e.isLeftToMigration(before)) {
		e.events.Event(pv, corev1.EventTypeWarning, reasonVolumeFailedDelete, fmt.Sprintf("the volume is of provisioner %q, and %s deletes only "+
			"volumes of its own: delete it by the storage's own means, and then the PersistentVolume",
			pv.Annotations[storagehelpers.AnnDynamicallyProvisioned], e.name))
	}
}

func (e *engine) onVolumeDeleted(obj any) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	pv, ok := obj.(*corev1.PersistentVolume)
	if !ok {
		return
	}
	e.volumes.remove(pv)
	e.deletions.remove(pv.Name)
	e.limits.volumes.Forget(pv.Name)
	e.limits.volumeWrites.Forget(pv.Name)
	if ref := pv.Spec.ClaimRef; ref != nil {
		e.queues.claims.Add(string(ref.UID))
	}
}

// onClass syncs the claims that wait with the class.
func (e *engine) onClass(obj any) {
	if class, ok := obj.(*storagev1.StorageClass); ok {
		for _, uid := range e.states.withClass(class.Name) {
			e.queues.claims.Add(string(uid))
		}
	}
}
