package replicaset

import (
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// owner is what the controller remembers of one ReplicaSet beyond its expectations. Only the run for that ReplicaSet
// touches it, so it needs no lock.
type owner struct {
	uid types.UID
	// written is the object as the last write of its status returned it.
	written *appsv1.ReplicaSet
	// names are those of Pods whose creation may or may not have happened.
	names []string
	// deletes are the Pods, name by UID, whose deletion may or may not have happened.
	deletes map[types.UID]string
}

// newest is the newer of the cached object and the one that the controller wrote last.
func (o *owner) newest(cached *appsv1.ReplicaSet) *appsv1.ReplicaSet {
	if o.written == nil {
		return cached
	}
	order, err := resourceversion.CompareResourceVersion(o.written.ResourceVersion, cached.ResourceVersion)
	if err == nil && order > 0 {
		return o.written
	}
	o.written = nil
	return cached
}

// owners are the ReplicaSets that the controller knows.
type owners struct {
	mu     sync.Mutex // guards byName
	byName map[types.NamespacedName]*owner
}

func newOwners() *owners { return &owners{byName: make(map[types.NamespacedName]*owner)} }

// of gives the owner of that name and UID. If another one had the name before, it is forgotten and its UID returned.
func (o *owners) of(name types.NamespacedName, uid types.UID) (known *owner, former types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	known = o.byName[name]
	if known != nil && known.uid == uid {
		return known, ""
	}
	if known != nil {
		former = known.uid
	}
	known = &owner{uid: uid}
	o.byName[name] = known
	return known, former
}

// forget drops the owner of that name and returns its UID, empty if none was known.
func (o *owners) forget(name types.NamespacedName) types.UID {
	o.mu.Lock()
	defer o.mu.Unlock()
	known := o.byName[name]
	if known == nil {
		return ""
	}
	delete(o.byName, name)
	return known.uid
}
