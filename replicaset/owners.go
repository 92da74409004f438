package replicaset

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// owner is what the controller remembers of one ReplicaSet beyond its expectations. Only the run for that ReplicaSet
// touches it, so it needs no lock.
type owner struct {
	uid types.UID
	// names are those of Pods whose creation may or may not have happened.
	names []string
	// deletes are the Pods, name by UID, whose deletion may or may not have happened.
	deletes map[types.UID]string
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
