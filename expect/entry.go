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

// entry is what is expected for one key. The lists are sorted and keep their room, so that the usual life of an
// expectation, recorded and soon met, allocates nothing; a snapshot is made only for a reader who comes in between.
// All but key, hash and shown is guarded by the shard's lock.
type entry struct {
	key  string
	hash uint64
	// shown is what is expected now, never written once it is here: nil if the key was forgotten, stale if a reader
	// has to make it. Readers need no lock to look.
	shown atomic.Pointer[ControlleeExpectations]

	creations, deletions []types.UID
	// made tells of those creations that may be released by age or version; nil while there are none.
	made map[types.UID]creation
}

var (
	// nothing is the snapshot of a key with nothing expected. It is never written.
	nothing = ControlleeExpectations{creations: []types.UID{}, deletions: []types.UID{}}
	// stale stands in for a snapshot that nobody has asked for since the last change.
	stale ControlleeExpectations
)

// expects reports whether anything is expected.
func (e *entry) expects() bool { return len(e.creations)+len(e.deletions) > 0 }

// changed says that what was shown is no longer true.
func (e *entry) changed() {
	if e.expects() {
		e.shown.Store(&stale)
	} else {
		e.shown.Store(&nothing)
	}
}

// snapshot makes what is shown if that is stale.
func (e *entry) snapshot() *ControlleeExpectations {
	shown := e.shown.Load()
	if shown != &stale {
		return shown
	}
	shown = &ControlleeExpectations{
		creations: append([]types.UID{}, e.creations...), deletions: append([]types.UID{}, e.deletions...),
	}
	e.shown.Store(shown)
	return shown
}

// forget makes the key unknown.
func (e *entry) forget() {
	e.creations, e.deletions, e.made = nil, nil, nil
	e.shown.Store(nil)
}

func (e *entry) expectCreations(made creation, uids []types.UID) {
	for _, uid := range uids {
		if has(e.deletions, uid) {
			continue
		}
		e.creations = with(e.creations, uid)
		e.note(uid, made)
	}
	e.changed()
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
	for _, uid := range uids {
		e.deletions = with(e.deletions, uid)
		e.meetCreation(uid)
	}
	e.changed()
}

func (e *entry) observeDeletions(uids []types.UID) {
	for _, uid := range uids {
		e.meetCreation(uid)
		e.deletions = without(e.deletions, uid)
	}
	e.changed()
}

// meetCreation drops the expectation of one creation, if there is one.
func (e *entry) meetCreation(uid types.UID) {
	e.creations = without(e.creations, uid)
	if e.made != nil {
		delete(e.made, uid)
	}
}

// sync drops what the cache has met. It runs at every reconcile, mostly with nothing expected, so it walks the
// lists only as far as there is something to look for.
func (e *entry) sync(live, terminating []types.UID) {
	before := len(e.creations)
	if before > 0 {
		for _, uid := range live {
			e.meetCreation(uid)
		}
		for _, uid := range terminating {
			e.meetCreation(uid)
		}
	}
	differs := before != len(e.creations)
	if len(e.deletions) > 0 || len(terminating) > 0 {
		var few [16]types.UID // most lists are short: what comes out is compared before it is kept
		keep := few[:0]
		for _, uid := range live {
			if has(e.deletions, uid) {
				keep = append(keep, uid)
			}
		}
		keep = append(keep, terminating...)
		slices.Sort(keep)
		keep = slices.Compact(keep)
		if !slices.Equal(keep, e.deletions) {
			e.deletions = append(e.deletions[:0], keep...)
			differs = true
		}
	}
	if differs {
		e.changed()
	}
}

// release drops creations that will never be seen: the cache is past their version, or they are older than oldest.
func (e *entry) release(resourceVersion string, oldest time.Time) {
	for uid, made := range e.made {
		passed := reached(resourceVersion, made.resourceVersion)
		if passed || (!oldest.IsZero() && made.at.Before(oldest)) {
			e.meetCreation(uid)
			e.changed()
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

func has(sorted []types.UID, uid types.UID) bool {
	_, found := slices.BinarySearch(sorted, uid)
	return found
}

// with adds the UID to a sorted list, in place.
func with(sorted []types.UID, uid types.UID) []types.UID {
	at, found := slices.BinarySearch(sorted, uid)
	if found {
		return sorted
	}
	return slices.Insert(sorted, at, uid)
}

// without takes the UID off a sorted list, in place.
func without(sorted []types.UID, uid types.UID) []types.UID {
	at, found := slices.BinarySearch(sorted, uid)
	if !found {
		return sorted
	}
	return slices.Delete(sorted, at, at+1)
}
