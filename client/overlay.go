package client

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// overlay holds what is known beyond the cache: the states of some keys at versions that the cache had not reached, and the
// keys and namespaces whose state is unknown. It does no I/O.
//
// Its rule: a state as of version v may be forgotten once the cache has reached v, because from then on the cache shows
// that state or a newer one.
type overlay[T Object] struct {
	// active is the number of states and invalidations: readers need no lock while it is zero.
	active atomic.Int64

	mu     sync.Mutex // guards all below
	states map[string]state[T]
	// order has the versions of the states, ascending, so that forgetting costs only what is forgotten. It may have
	// versions of states that were replaced.
	order []keyVersion
	// listedVersions are the versions at which whole namespaces were looked up. A key there without a state of its own did not
	// exist at that version, even if the cache, being older, shows it later.
	listedVersions map[string]uint64
	// invalidKeys are the keys whose state must be looked up, by the number of their invalidation; a lookup that began
	// before the newest invalidation does not end it.
	invalidKeys       map[string]uint64
	invalidNamespaces map[string]uint64 // likewise for whole namespaces
	lastInvalidation  uint64
	cacheVersion      uint64 // the newest version that the cache is known to have reached; what the cache itself reports may go back in a resync
}

// state is what a key was at a version: an object, or nothing.
type state[T Object] struct {
	version uint64
	obj     T
	exists  bool
}

type keyVersion struct {
	version uint64
	key     string
}

func newOverlay[T Object]() *overlay[T] {
	return &overlay[T]{
		states: map[string]state[T]{}, listedVersions: map[string]uint64{},
		invalidKeys: map[string]uint64{}, invalidNamespaces: map[string]uint64{},
	}
}

// put stores a state unless the overlay has a newer one.
func (o *overlay[T]) put(key string, s state[T]) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.putLocked(key, s)
}

// putLocked is put for a caller that holds mu.
func (o *overlay[T]) putLocked(key string, s state[T]) {
	if known, ok := o.states[key]; s.version <= o.cacheVersion || (ok && known.version >= s.version) {
		return
	}
	o.states[key] = s
	at, _ := slices.BinarySearchFunc(o.order, s.version, func(v keyVersion, version uint64) int {
		if v.version <= version {
			return -1
		}
		return 1
	})
	o.order = slices.Insert(o.order, at, keyVersion{s.version, key})
	o.updateActive()
}

// pruneLocked forgets the states that a cache at this version shows itself. The caller holds mu.
func (o *overlay[T]) pruneLocked(version uint64) {
	o.cacheVersion = max(o.cacheVersion, version)
	n := 0
	for n < len(o.order) && o.order[n].version <= o.cacheVersion {
		passed := o.order[n]
		if o.states[passed.key].version == passed.version {
			delete(o.states, passed.key)
		}
		n++
	}
	o.order = slices.Delete(o.order, 0, n)
	maps.DeleteFunc(o.listedVersions, func(_ string, floor uint64) bool { return floor <= o.cacheVersion })
	o.updateActive()
}

// view is the content of the overlay at one moment.
type view[T Object] struct {
	states         map[string]state[T]
	listedVersions map[string]uint64
}

// get returns the state of a key that the cache may not show yet.
func (v view[T]) get(key string) (state[T], bool) {
	s, ok := v.states[key]
	for namespace, floor := range v.listedVersions {
		if inNamespace(key, namespace) && floor > s.version {
			s, ok = state[T]{version: floor}, true
		}
	}
	return s, ok
}

// get returns the state of a key that a cache at this version may not show yet.
func (o *overlay[T]) get(key string, cacheVersion uint64) (state[T], bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pruneLocked(cacheVersion)
	return view[T]{o.states, o.listedVersions}.get(key)
}

// snapshot returns the states of a namespace, or of all if it is empty, that a cache at this version may not show yet. The
// caller owns it.
func (o *overlay[T]) snapshot(namespace string, cacheVersion uint64) view[T] {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pruneLocked(cacheVersion)
	found := view[T]{states: make(map[string]state[T], len(o.states)), listedVersions: maps.Clone(o.listedVersions)}
	for key := range o.states {
		if s, _ := found.get(key); inNamespace(key, namespace) && o.states[key].version >= s.version {
			found.states[key] = o.states[key]
		}
	}
	return found
}

// invalidate notes that the state of a key must be looked up.
func (o *overlay[T]) invalidate(key string) { o.addInvalid(o.invalidKeys, key) }

// invalidateNamespace notes that all of a namespace must be looked up.
func (o *overlay[T]) invalidateNamespace(namespace string) {
	o.addInvalid(o.invalidNamespaces, namespace)
}

func (o *overlay[T]) addInvalid(doubts map[string]uint64, name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lastInvalidation++
	doubts[name] = o.lastInvalidation
	o.updateActive()
}

// pendingLookups returns the keys and namespaces that must be looked up before a read of the key, or of all keys of the
// namespace if the key is empty, and the number of the newest invalidation so far.
func (o *overlay[T]) pendingLookups(key, namespace string) (keys, namespaces []string, upTo uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for invalid := range o.invalidNamespaces {
		// An invalid namespace "" means all of them, or objects without one.
		if invalid == "" || namespace == "" || invalid == namespace {
			namespaces = append(namespaces, invalid)
		}
	}
	for invalid := range o.invalidKeys {
		if invalid == key || (key == "" && inNamespace(invalid, namespace)) {
			keys = append(keys, invalid)
		}
	}
	return keys, namespaces, o.lastInvalidation
}

// resolve stores the result of a lookup in the overlay and ends the invalidations of the key up to upTo.
func (o *overlay[T]) resolve(key string, s state[T], upTo uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.putLocked(key, s)
	if o.invalidKeys[key] <= upTo {
		delete(o.invalidKeys, key)
	}
	o.updateActive()
}

// resolveNamespace stores the whole content of a namespace at a version in the overlay.
func (o *overlay[T]) resolveNamespace(namespace string, version uint64, found map[string]T, upTo uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if version > o.cacheVersion {
		o.listedVersions[namespace] = max(o.listedVersions[namespace], version)
	}
	for key, obj := range found {
		o.putLocked(key, state[T]{version: version, obj: obj, exists: true})
	}
	for key, number := range o.invalidKeys {
		if number <= upTo && inNamespace(key, namespace) {
			delete(o.invalidKeys, key)
		}
	}
	if o.invalidNamespaces[namespace] <= upTo {
		delete(o.invalidNamespaces, namespace)
	}
	o.updateActive()
}

// updateActive updates active. The caller holds mu.
func (o *overlay[T]) updateActive() {
	o.active.Store(int64(len(o.order) + len(o.listedVersions) + len(o.invalidKeys) + len(o.invalidNamespaces)))
}

// inNamespace reports whether a key is in the namespace; every key is in the empty one.
func inNamespace(key, namespace string) bool {
	return namespace == "" ||
		(len(key) > len(namespace) && key[len(namespace)] == '/' && strings.HasPrefix(key, namespace))
}

// parseVersion parses a resource version. It returns 0 if the version is empty or not a number.
func parseVersion(text string) uint64 {
	version, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return version
}
