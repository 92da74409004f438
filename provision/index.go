package provision

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// claimIndex finds claims in the informer's store by UID. It keeps an index of its own, so that it works
// with any informer of the caller's, started or not.
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

// volumeIndex finds volumes by name, and those of a claim: our own, and one of another provisioner.
type volumeIndex struct {
	store  cache.Store
	isOurs func(*corev1.PersistentVolume) bool

	mu sync.RWMutex // guards all below
	// own has the names of our volumes by claim, foreign those of others: a claim for which we provision a volume may be
	// bound to one that exists already.
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

// hasOwn returns whether the cache has a volume that was provisioned for the claim.
func (x *volumeIndex) hasOwn(claim types.UID) bool {
	return x.get(volumeNamePrefix+string(claim)) != nil || x.has(claim, x.own)
}

// hasForeign returns whether the cache has a volume of another provisioner, or of none, that names the claim.
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
