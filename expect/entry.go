package expect

import (
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// creation is when an object was created: by the API server's count, and by the clock if ages are bounded.
type creation struct {
	resourceVersion string
	at              time.Time
}

// entry is what is expected for one key. What is published in shown is never written again, so that readers need no
// lock; changes are made by the holder of the shard's lock, each as a new snapshot.
type entry struct {
	key  string
	hash uint64
	// shown is what is expected now; nil if the key was forgotten.
	shown atomic.Pointer[ControlleeExpectations]
	// made tells of those creations that may be released by age or version; nil while there are none. The shard's
	// lock guards it.
	made map[types.UID]creation
}

// nothing is the snapshot of a key with nothing expected. It is never written.
var nothing = ControlleeExpectations{creations: []types.UID{}, deletions: []types.UID{}}

// expects reports whether anything is expected.
func (e *entry) expects() bool {
	shown := e.shown.Load()
	return shown != nil && len(shown.creations)+len(shown.deletions) > 0
}

// publish makes the sorted lists the entry's snapshot. The caller gives them away.
func (e *entry) publish(creations, deletions []types.UID) {
	if len(creations)+len(deletions) == 0 {
		e.shown.Store(&nothing)
		return
	}
	if creations == nil {
		creations = nothing.creations
	}
	if deletions == nil {
		deletions = nothing.deletions
	}
	e.shown.Store(&ControlleeExpectations{creations: creations, deletions: deletions})
}

func (e *entry) expectCreations(made creation, uids []types.UID) {
	shown := e.shown.Load()
	creations := shown.creations
	for _, uid := range uids {
		if has(shown.deletions, uid) {
			continue
		}
		creations = with(creations, shown.creations, uid)
		e.note(uid, made)
	}
	if len(creations) != len(shown.creations) {
		e.publish(creations, shown.deletions)
	}
}

// note keeps when an object was created, if that was told.
func (e *entry) note(uid types.UID, made creation) {
	if made == (creation{}) {
		delete(e.made, uid)
		return
	}
	if e.made == nil {
		e.made = make(map[types.UID]creation)
	}
	e.made[uid] = made
}

func (e *entry) expectDeletions(uids []types.UID) {
	shown := e.shown.Load()
	creations, deletions := shown.creations, shown.deletions
	for _, uid := range uids {
		deletions = with(deletions, shown.deletions, uid)
		creations = without(creations, shown.creations, uid)
		delete(e.made, uid)
	}
	e.change(shown, creations, deletions)
}

func (e *entry) observeDeletions(uids []types.UID) {
	shown := e.shown.Load()
	creations, deletions := shown.creations, shown.deletions
	for _, uid := range uids {
		creations = without(creations, shown.creations, uid)
		deletions = without(deletions, shown.deletions, uid)
		delete(e.made, uid)
	}
	e.change(shown, creations, deletions)
}

// change publishes the lists unless they are as long as before: each step only adds to a list or only takes from it.
func (e *entry) change(shown *ControlleeExpectations, creations, deletions []types.UID) {
	if len(creations) != len(shown.creations) || len(deletions) != len(shown.deletions) {
		e.publish(creations, deletions)
	}
}

// sync drops what the cache has met. It runs at every reconcile, mostly with nothing expected, so it walks the
// lists only as far as there is something to look for.
func (e *entry) sync(live, terminating []types.UID) {
	shown := e.shown.Load()
	creations := shown.creations
	if len(creations) > 0 {
		for _, list := range [2][]types.UID{live, terminating} {
			for _, uid := range list {
				creations = without(creations, shown.creations, uid)
				if e.made != nil {
					delete(e.made, uid)
				}
			}
		}
	}
	if len(shown.deletions) == 0 && len(terminating) == 0 {
		if len(creations) != len(shown.creations) {
			e.publish(creations, shown.deletions)
		}
		return
	}
	var few [16]types.UID // most lists are short: what comes out is compared before it is kept
	keep := few[:0]
	for _, uid := range live {
		if has(shown.deletions, uid) {
			keep = append(keep, uid)
		}
	}
	keep = append(keep, terminating...)
	slices.Sort(keep)
	keep = slices.Compact(keep)
	deletions := shown.deletions
	if !slices.Equal(keep, deletions) {
		deletions = slices.Clone(keep)
	} else if len(creations) == len(shown.creations) {
		return
	}
	e.publish(creations, deletions)
}

// release drops creations that will never be seen: the cache is past their version, or they are older than oldest.
func (e *entry) release(resourceVersion string, oldest time.Time) {
	shown := e.shown.Load()
	creations := shown.creations
	for uid, made := range e.made {
		passed := reached(resourceVersion, made.resourceVersion)
		if passed || (!oldest.IsZero() && made.at.Before(oldest)) {
			creations = without(creations, shown.creations, uid)
			delete(e.made, uid)
		}
	}
	e.change(shown, creations, shown.deletions)
}

// reached reports whether a cache at version now has seen version then; false if that cannot be told.
func reached(now, then string) bool {
	if now == "" || then == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(now, then)
	return err == nil && order >= 0
}

func has(sorted []types.UID, uid types.UID) bool {
	_, found := slices.BinarySearch(sorted, uid)
	return found
}

// with adds the UID to a sorted list. The list that is published already is copied first, and any other changed in
// place.
func with(list, published []types.UID, uid types.UID) []types.UID {
	at, found := slices.BinarySearch(list, uid)
	if found {
		return list
	}
	if shares(list, published) {
		list = append(make([]types.UID, 0, len(list)+1), list...)
	}
	return slices.Insert(list, at, uid)
}

// without takes the UID off a sorted list, as with adds it.
func without(list, published []types.UID, uid types.UID) []types.UID {
	at, found := slices.BinarySearch(list, uid)
	switch {
	case !found:
		return list
	case len(list) == 1:
		return nil
	case shares(list, published):
		list = slices.Clone(list)
	}
	return slices.Delete(list, at, at+1)
}

// shares reports whether the two are one list.
func shares(list, published []types.UID) bool {
	return len(list) == len(published) && (len(list) == 0 || &list[0] == &published[0])
}
