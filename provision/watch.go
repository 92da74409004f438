package provision

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// claimIndex finds claims in the informer's store by UID. It keeps its own index, so that it works with
// every informer that the caller may hand in, started or not.
type claimIndex struct {
	store cache.Store
	mu    sync.RWMutex
	keys  map[types.UID]string
}

func newClaimIndex(store cache.Store) *claimIndex {
	return &claimIndex{store: store, keys: map[types.UID]string{}}
}

func (x *claimIndex) add(claim *corev1.PersistentVolumeClaim) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.keys[claim.UID] = claim.Namespace + "/" + claim.Name
}

func (x *claimIndex) remove(uid types.UID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.keys, uid)
}

// get returns the cached claim, nil if there is none. It must not be changed.
func (x *claimIndex) get(uid types.UID) *corev1.PersistentVolumeClaim {
	x.mu.RLock()
	key, ok := x.keys[uid]
	x.mu.RUnlock()
	if !ok {
		return nil
	}
	obj, ok, err := x.store.GetByKey(key)
	if claim, is := obj.(*corev1.PersistentVolumeClaim); ok && err == nil && is && claim.UID == uid {
		return claim
	}
	return nil
}

// volumeIndex finds volumes by name, and those of a claim: the one that was made for it, and any that it has.
type volumeIndex struct {
	store  cache.Store
	isOurs func(*corev1.PersistentVolume) bool

	mu sync.RWMutex // guards all below
	// own has the names of volumes of ours by claim, given those of others: a claim for which we make a volume may be
	// bound to one that was there.
	own, foreign map[types.UID]string
}

func newVolumeIndex(store cache.Store, isOurs func(*corev1.PersistentVolume) bool) *volumeIndex {
	return &volumeIndex{store: store, isOurs: isOurs, own: map[types.UID]string{}, foreign: map[types.UID]string{}}
}

func (x *volumeIndex) add(pv *corev1.PersistentVolume) {
	if ref := pv.Spec.ClaimRef; ref != nil && ref.UID != "" {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.isOurs(pv) {
			x.own[ref.UID] = pv.Name
		} else {
			x.foreign[ref.UID] = pv.Name
		}
	}
}

func (x *volumeIndex) remove(pv *corev1.PersistentVolume) {
	if ref := pv.Spec.ClaimRef; ref != nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, names := range []map[types.UID]string{x.own, x.foreign} {
			if names[ref.UID] == pv.Name {
				delete(names, ref.UID)
			}
		}
	}
}

func (x *volumeIndex) get(name string) *corev1.PersistentVolume {
	obj, ok, err := x.store.GetByKey(name)
	if pv, is := obj.(*corev1.PersistentVolume); ok && err == nil && is {
		return pv
	}
	return nil
}

// hasOwn returns whether the cache shows a volume that was made for the claim.
func (x *volumeIndex) hasOwn(claim types.UID) bool {
	return x.get(volumeNamePrefix+string(claim)) != nil || x.has(claim, x.own)
}

// hasForeign returns whether the cache shows a volume of somebody else's that is the claim's.
func (x *volumeIndex) hasForeign(claim types.UID) bool { return x.has(claim, x.foreign) }

func (x *volumeIndex) has(claim types.UID, names map[types.UID]string) bool {
	x.mu.RLock()
	name, ok := names[claim]
	x.mu.RUnlock()
	if !ok {
		return false
	}
	pv := x.get(name)
	return pv != nil && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == claim
}

// subscribe has the informers report to the queues.
func (e *engine) subscribe() error {
	for _, s := range []struct {
		what     string
		informer cache.SharedInformer
		handler  cache.ResourceEventHandler
	}{
		{"claims", e.claimInformer, cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { e.onClaim(nil, obj) },
			UpdateFunc: e.onClaim,
			DeleteFunc: e.onClaimDeleted,
		}},
		{"volumes", e.volumeInformer, cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { e.onVolume(nil, obj) },
			UpdateFunc: e.onVolume,
			DeleteFunc: e.onVolumeDeleted,
		}},
		{"classes", e.classInformer, cache.ResourceEventHandlerFuncs{
			AddFunc:    e.onClass,
			UpdateFunc: func(_, obj any) { e.onClass(obj) },
		}},
	} {
		registration, err := s.informer.AddEventHandler(s.handler)
		if err != nil {
			e.unsubscribe()
			return fmt.Errorf("watch %s: %w", s.what, err)
		}
		e.handled = append(e.handled, registration.HasSyncedChecker())
		e.unregister = append(e.unregister, func() {
			if err := s.informer.RemoveEventHandler(registration); err != nil {
				e.logger.Error("cannot stop watching", "what", s.what, "error", err)
			}
		})
	}
	return nil
}

func (e *engine) unsubscribe() {
	for _, f := range e.unregister {
		f()
	}
	e.unregister = nil
}

// syncCaches starts the informers that are our own and waits until all informers have listed and our
// handlers have seen what they listed.
func (e *engine) syncCaches(ctx context.Context) bool {
	e.factory.StartWithContext(ctx)
	synced := e.handled
	if s := e.settings.nodes; s != nil {
		synced = append(synced, s.HasSyncedChecker())
	}
	return cache.WaitFor(ctx, "", synced...)
}

func (e *engine) onClaim(old, obj any) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return
	}
	e.claims.add(claim)
	st := e.states.get(claim.UID)
	if before, ok := old.(*corev1.PersistentVolumeClaim); ok && st != nil &&
		before.ResourceVersion == claim.ResourceVersion {
		st.resync.Store(true)
	}
	if before, ok := old.(*corev1.PersistentVolumeClaim); ok && before.UID != claim.UID {
		e.onClaimDeleted(before) // deleted and created again between two looks of the informer
	}
	if st == nil && claim.Spec.VolumeName != "" && !e.hasIntentInCache(claim) {
		return // the many claims that are done cost nothing
	}
	e.decide.Add(string(claim.UID))
}

func (e *engine) onClaimDeleted(obj any) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok {
		e.claims.remove(claim.UID)
		e.decide.Add(string(claim.UID))
	}
}

func (e *engine) onVolume(old, obj any) {
	pv, ok := obj.(*corev1.PersistentVolume)
	if !ok {
		return
	}
	e.volumes.add(pv)
	if ref := pv.Spec.ClaimRef; ref != nil && old == nil && e.states.get(ref.UID) != nil {
		e.decide.Add(string(ref.UID))
	}
	if before, ok := old.(*corev1.PersistentVolume); ok {
		if before.UID != pv.UID {
			e.deletions.remove(before.Name)
		}
		e.deletions.resync(pv.Name, before.ResourceVersion == pv.ResourceVersion)
	}
	if e.isOurs(pv) && e.volumeStep(pv) != volumeIdle {
		e.deletes.Add(pv.Name)
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
	e.volumeLimiter.Forget(pv.Name)
	e.volumeWrites.Forget(pv.Name)
	if ref := pv.Spec.ClaimRef; ref != nil {
		e.decide.Add(string(ref.UID))
	}
}

// onClass looks again at the claims that wait with the class.
func (e *engine) onClass(obj any) {
	if class, ok := obj.(*storagev1.StorageClass); ok {
		for _, uid := range e.states.withClass(class.Name) {
			e.decide.Add(string(uid))
		}
	}
}
