package replicaset

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// setState is what the controller remembers of one ReplicaSet beyond its expectations. Only the run for that ReplicaSet
// touches it, so it needs no lock.
type setState struct {
	uid types.UID
	// uncertainCreates are those of Pods whose creation may or may not have happened.
	uncertainCreates []string
	// pendingDeletes are the Pods, name by UID, whose deletion may or may not have happened.
	pendingDeletes map[types.UID]string
}

// stateByName are the ReplicaSets that the controller knows.
type stateByName struct {
	mu     sync.Mutex // guards byName
	byName map[types.NamespacedName]*setState
}

func newStateByName() *stateByName {
	return &stateByName{byName: make(map[types.NamespacedName]*setState)}
}

// get returns the owner of that name and UID. If another one had the name before, it is forgotten and its UID returned.
func (o *stateByName) get(name types.NamespacedName, uid types.UID) (known *setState, previousUID types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	known = o.byName[name]
	if known != nil && known.uid == uid {
		return known, ""
	}
	if known != nil {
		previousUID = known.uid
	}
	known = &setState{uid: uid}
	o.byName[name] = known
	return known, previousUID
}

// forget drops the owner of that name and returns its UID, empty if none was known.
func (o *stateByName) forget(name types.NamespacedName) types.UID {
	o.mu.Lock()
	defer o.mu.Unlock()
	known := o.byName[name]
	if known == nil {
		return ""
	}
	delete(o.byName, name)
	return known.uid
}
