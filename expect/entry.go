package expect

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// creation is when an object was created: by the API server's count, and by the clock if ages are bounded.
type creation struct {
	resourceVersion string
	at              time.Time
}

// entry is what is expected for one key. A UID is in at most one of the two maps. Maps are made when first needed,
// since most keys expect nothing most of the time. The lock of the entry's shard guards it.
type entry struct {
	creations map[types.UID]creation
	deletions map[types.UID]struct{}
	// shown is the snapshot of the above, nil when they have changed since it was taken. Once published it is
	// never written again.
	shown *ControlleeExpectations
}

// met reports whether nothing is expected.
func (e *entry) met() bool { return len(e.creations) == 0 && len(e.deletions) == 0 }

func (e *entry) expectCreations(made creation, uids []types.UID) {
	for _, uid := range uids {
		if _, goes := e.deletions[uid]; goes {
			continue
		}
		if e.creations == nil {
			e.creations = make(map[types.UID]creation, len(uids))
		}
		e.creations[uid] = made
		e.shown = nil
	}
}

func (e *entry) expectDeletions(uids []types.UID) {
	for _, uid := range uids {
		if e.deletions == nil {
			e.deletions = make(map[types.UID]struct{}, len(uids))
		}
		e.deletions[uid] = struct{}{}
		delete(e.creations, uid)
		e.shown = nil
	}
}

func (e *entry) observeDeletions(uids []types.UID) {
	for _, uid := range uids {
		delete(e.creations, uid)
		delete(e.deletions, uid)
	}
	e.shown = nil
}

// sync drops what the cache has met. It runs at every reconcile, mostly with nothing expected, so it walks the
// lists only as far as there is something to look for, and makes a set only of what stays.
func (e *entry) sync(live, terminating []types.UID) {
	if len(e.creations) > 0 {
		for _, uid := range live {
			e.meetCreation(uid)
		}
		for _, uid := range terminating {
			e.meetCreation(uid)
		}
	}
	if len(e.deletions) == 0 && len(terminating) == 0 {
		return
	}
	keep := make(map[types.UID]struct{}, len(terminating))
	for _, uid := range live {
		if _, goes := e.deletions[uid]; goes {
			keep[uid] = struct{}{}
		}
	}
	for _, uid := range terminating {
		keep[uid] = struct{}{}
	}
	if !sameKeys(keep, e.deletions) {
		e.deletions = keep
		e.shown = nil
	}
}

// meetCreation drops the creation of one UID that the cache has.
func (e *entry) meetCreation(uid types.UID) {
	if _, ok := e.creations[uid]; ok {
		delete(e.creations, uid)
		e.shown = nil
	}
}

// release drops creations that will never be seen: the cache is past their version, or they are older than oldest.
func (e *entry) release(resourceVersion string, oldest time.Time) {
	for uid, made := range e.creations {
		passed := reached(resourceVersion, made.resourceVersion)
		if passed || (!oldest.IsZero() && made.at.Before(oldest)) {
			delete(e.creations, uid)
			e.shown = nil
		}
	}
}

// reached reports whether a cache at version now has seen version then; false if that cannot be told.
func reached(now, then string) bool {
	if now == "" || then == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(now, then)
	return err == nil && order >= 0
}

func sameKeys(a, b map[types.UID]struct{}) bool {
	if len(a) != len(b) {
		return false
	}
	for uid := range a {
		if _, ok := b[uid]; !ok {
			return false
		}
	}
	return true
}

// snapshot makes the entry's snapshot unless it has one.
func (e *entry) snapshot() *ControlleeExpectations {
	if e.shown != nil {
		return e.shown
	}
	shown := &ControlleeExpectations{
		creations: make([]types.UID, 0, len(e.creations)),
		deletions: make([]types.UID, 0, len(e.deletions)),
	}
	for uid := range e.creations {
		shown.creations = append(shown.creations, uid)
	}
	for uid := range e.deletions {
		shown.deletions = append(shown.deletions, uid)
	}
	slices.Sort(shown.creations)
	slices.Sort(shown.deletions)
	e.shown = shown
	return shown
}
