package expect

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// createInfo is when an object was created: by the API server's count, and by the clock if ages are bounded.
type createInfo struct {
	resourceVersion string
	at              time.Time
}

// deletion marks, in the place of a creation, that a deletion is expected. It is never written.
var deletion = &createInfo{}

// expectation is one expectation: a creation that may be released by age or version, one that may not (nil), or a deletion.
type expectation struct {
	uid     types.UID
	created *createInfo
}

// entry is what is expected for one key. It fills one cache line, since a controller with many owners mostly waits for
// memory here. The list keeps its capacity, so that the usual life of an expectation, recorded and soon met, allocates
// nothing; a snapshot is created only for a reader that comes in between.
type entry struct {
	key string
	// snapshotPtr is what is expected now: nil if the key is unknown, staleExpectations if the next reader has to create
	// it. A snapshot is never modified. Readers load the pointer without a lock; it is stored under mu.
	snapshotPtr atomic.Pointer[ControlleeExpectations]

	mu      sync.Mutex
	pending []expectation // sorted by UID, each UID once; guarded by mu
}

var (
	// emptyExpectations is the snapshot of a key with nothing expected. It is never written.
	emptyExpectations = ControlleeExpectations{creations: []types.UID{}, deletions: []types.UID{}}
	// staleExpectations replaces a snapshot that was not read since the last change.
	staleExpectations ControlleeExpectations
)

// The methods below require mu to be held.

// invalidateSnapshot marks the snapshot as stale.
func (e *entry) invalidateSnapshot() {
	now := &emptyExpectations
	if len(e.pending) > 0 {
		now = &staleExpectations
	}
	if e.snapshotPtr.Load() != now {
		e.snapshotPtr.Store(now)
	}
}

// snapshot returns what is expected, nil if the key is unknown.
func (e *entry) snapshot() *ControlleeExpectations {
	snapshot := e.snapshotPtr.Load()
	if snapshot != &staleExpectations {
		return snapshot
	}
	creations, deletions := e.count()
	snapshot = &ControlleeExpectations{
		creations: make([]types.UID, 0, creations), deletions: make([]types.UID, 0, deletions),
	}
	for _, c := range e.pending {
		if c.created == deletion {
			snapshot.deletions = append(snapshot.deletions, c.uid)
		} else {
			snapshot.creations = append(snapshot.creations, c.uid)
		}
	}
	e.snapshotPtr.Store(snapshot)
	return snapshot
}

// count counts what is expected.
func (e *entry) count() (creations, deletions int) {
	for _, c := range e.pending {
		if c.created == deletion {
			deletions++
		}
	}
	return len(e.pending) - deletions, deletions
}

// forget marks the key as unknown.
func (e *entry) forget() {
	e.pending = nil
	e.snapshotPtr.Store(nil)
}

func (e *entry) expectCreations(created *createInfo, uids []types.UID) {
	for _, uid := range uids {
		if at, found := e.find(uid); !found {
			e.pending = slices.Insert(e.pending, at, expectation{uid, created})
		} else if e.pending[at].created != deletion {
			e.pending[at].created = created
		}
	}
	e.invalidateSnapshot()
}

func (e *entry) expectDeletions(uids []types.UID) {
	for _, uid := range uids {
		if at, found := e.find(uid); !found {
			e.pending = slices.Insert(e.pending, at, expectation{uid, deletion})
		} else {
			e.pending[at].created = deletion
		}
	}
	e.invalidateSnapshot()
}

func (e *entry) observeDeletions(uids []types.UID) {
	for _, uid := range uids {
		if at, found := e.find(uid); found {
			e.pending = slices.Delete(e.pending, at, at+1)
		}
	}
	e.invalidateSnapshot()
}

// sync drops what the cache has met: creations that it shows, deletions that it no longer shows as live. It runs at
// every reconcile, mostly with nothing expected and nothing terminating.
func (e *entry) sync(live, terminating []types.UID) {
	if len(e.pending)+len(terminating) == 0 {
		return
	}
	var small [32]bool
	shows := small[:]
	if len(e.pending) > len(small) {
		shows = make([]bool, len(e.pending))
	}
	for _, uid := range live {
		if at, found := e.find(uid); found {
			shows[at] = true
		}
	}
	changed := false
	var unexpected []types.UID // terminating by another's hand
	for _, uid := range terminating {
		if at, found := e.find(uid); found {
			changed = changed || e.pending[at].created != deletion
			e.pending[at].created, shows[at] = deletion, true
		} else {
			unexpected = append(unexpected, uid)
		}
	}
	kept := e.pending[:0]
	for at, c := range e.pending {
		if shows[at] == (c.created == deletion) {
			kept = append(kept, c)
		}
	}
	changed = changed || len(kept) < len(e.pending)
	clear(e.pending[len(kept):])
	e.pending = kept
	if changed || len(unexpected) > 0 {
		e.expectDeletions(unexpected)
	}
}

// dropUnseen drops creations that will never be seen: the cache is past their version, or they are older than oldest.
func (e *entry) dropUnseen(resourceVersion string, oldest time.Time) {
	before := len(e.pending)
	e.pending = slices.DeleteFunc(e.pending, func(c expectation) bool {
		return c.created != nil && c.created != deletion &&
			(versionReached(resourceVersion, c.created.resourceVersion) || (!oldest.IsZero() && c.created.at.Before(oldest)))
	})
	if len(e.pending) < before {
		e.invalidateSnapshot()
	}
}

// find returns the index of the UID in the list, or where it would be inserted.
func (e *entry) find(uid types.UID) (at int, found bool) {
	low, high := 0, len(e.pending)
	for low < high {
		middle := (low + high) / 2
		switch here := e.pending[middle].uid; {
		case here == uid:
			return middle, true
		case here < uid:
			low = middle + 1
		default:
			high = middle
		}
	}
	return low, false
}

// versionReached reports whether a cache at version now has seen version then; false if they cannot be compared.
func versionReached(now, then string) bool {
	if now == "" || then == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(now, then)
	return err == nil && order >= 0
}
