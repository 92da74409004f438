package expect

import (
	"slices"
	"sync"
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

// deletion marks, in the place of a creation, that a deletion is expected. It is never written.
var deletion = &creation{}

// change is one expectation: a creation that may be released by age or version, one that may not (nil), or a deletion.
type change struct {
	uid  types.UID
	made *creation
}

// entry is what is expected for one key. It fills one cache line, since a controller with many owners mostly waits for
// memory here. The list keeps its room, so that the usual life of an expectation, recorded and soon met, allocates
// nothing; a snapshot is made only for a reader who comes in between.
type entry struct {
	key string
	// shown is what is expected now, never written once it is here: nil if the key is not known, stale if a reader
	// has to make it. Readers need no lock to look; it is changed under mu.
	shown atomic.Pointer[ControlleeExpectations]

	mu      sync.Mutex
	pending []change // sorted by UID, each UID once; guarded by mu
}

var (
	// nothing is the snapshot of a key with nothing expected. It is never written.
	nothing = ControlleeExpectations{creations: []types.UID{}, deletions: []types.UID{}}
	// stale stands in for a snapshot that nobody has asked for since the last change.
	stale ControlleeExpectations
)

// The methods below want mu held.

// changed says that what was shown is no longer true.
func (e *entry) changed() {
	now := &nothing
	if len(e.pending) > 0 {
		now = &stale
	}
	if e.shown.Load() != now {
		e.shown.Store(now)
	}
}

// snapshot gives what is expected, nil if the key is not known.
func (e *entry) snapshot() *ControlleeExpectations {
	shown := e.shown.Load()
	if shown != &stale {
		return shown
	}
	creations, deletions := e.count()
	shown = &ControlleeExpectations{
		creations: make([]types.UID, 0, creations), deletions: make([]types.UID, 0, deletions),
	}
	for _, c := range e.pending {
		if c.made == deletion {
			shown.deletions = append(shown.deletions, c.uid)
		} else {
			shown.creations = append(shown.creations, c.uid)
		}
	}
	e.shown.Store(shown)
	return shown
}

// count counts what is expected.
func (e *entry) count() (creations, deletions int) {
	for _, c := range e.pending {
		if c.made == deletion {
			deletions++
		}
	}
	return len(e.pending) - deletions, deletions
}

// forget makes the key unknown.
func (e *entry) forget() {
	e.pending = nil
	e.shown.Store(nil)
}

func (e *entry) expectCreations(made *creation, uids []types.UID) {
	for _, uid := range uids {
		if at, found := e.find(uid); !found {
			e.pending = slices.Insert(e.pending, at, change{uid, made})
		} else if e.pending[at].made != deletion {
			e.pending[at].made = made
		}
	}
	e.changed()
}

func (e *entry) expectDeletions(uids []types.UID) {
	for _, uid := range uids {
		if at, found := e.find(uid); !found {
			e.pending = slices.Insert(e.pending, at, change{uid, deletion})
		} else {
			e.pending[at].made = deletion
		}
	}
	e.changed()
}

func (e *entry) observeDeletions(uids []types.UID) {
	for _, uid := range uids {
		if at, found := e.find(uid); found {
			e.pending = slices.Delete(e.pending, at, at+1)
		}
	}
	e.changed()
}

// sync drops what the cache has met: creations that it shows, deletions that it no longer shows as live. It runs at
// every reconcile, mostly with nothing expected and nothing terminating.
func (e *entry) sync(live, terminating []types.UID) {
	if len(e.pending)+len(terminating) == 0 {
		return
	}
	var few [32]bool
	shows := few[:]
	if len(e.pending) > len(few) {
		shows = make([]bool, len(e.pending))
	}
	for _, uid := range live {
		if at, found := e.find(uid); found {
			shows[at] = true
		}
	}
	differs := false
	var unforeseen []types.UID // terminating by another's hand
	for _, uid := range terminating {
		if at, found := e.find(uid); found {
			differs = differs || e.pending[at].made != deletion
			e.pending[at].made, shows[at] = deletion, true
		} else {
			unforeseen = append(unforeseen, uid)
		}
	}
	kept := e.pending[:0]
	for at, c := range e.pending {
		if shows[at] == (c.made == deletion) {
			kept = append(kept, c)
		}
	}
	differs = differs || len(kept) < len(e.pending)
	clear(e.pending[len(kept):])
	e.pending = kept
	if differs || len(unforeseen) > 0 {
		e.expectDeletions(unforeseen)
	}
}

// release drops creations that will never be seen: the cache is past their version, or they are older than oldest.
func (e *entry) release(resourceVersion string, oldest time.Time) {
	before := len(e.pending)
	e.pending = slices.DeleteFunc(e.pending, func(c change) bool {
		return c.made != nil && c.made != deletion &&
			(reached(resourceVersion, c.made.resourceVersion) || (!oldest.IsZero() && c.made.at.Before(oldest)))
	})
	if len(e.pending) < before {
		e.changed()
	}
}

// find tells where the UID is in the list, or would be.
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

// reached reports whether a cache at version now has seen version then; false if that cannot be told.
func reached(now, then string) bool {
	if now == "" || then == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(now, then)
	return err == nil && order >= 0
}
