package expect

import (
	"hash/maphash"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// ControlleeKeyFunc returns the key of a controlled resource: "namespace/name", or "name" for a cluster-scoped one. The key
// of a cache.DeletedFinalStateUnknown is its own Key.
var ControlleeKeyFunc = cache.DeletionHandlingMetaNamespaceKeyFunc

const (
	// shards keeps controllers' workers, which hold different keys, from waiting for each other.
	shards = 64
	// logLevel is the level at which every change is logged.
	logLevel = 4
)

// Options are the options of NewExpectationsStoreWithOptions.
type Options struct {
	// CreationTTL is how long a creation may stay expected. When a SyncExpectations finds it older, it is dropped as one
	// that will never be seen. It should be far above the lag that a cache can have, for dropping too early lets an object
	// be created twice. Zero, the default, keeps creations without bound.
	CreationTTL time.Duration
	// Clock measures the age of creations. The default is the real clock.
	Clock clock.PassiveClock
}

// ExpectationsStore holds, for every key, the UIDs of objects whose creation and whose deletion the cache has not
// shown yet. It is safe for concurrent use by any number of goroutines, and reads of unchanged expectations
// allocate nothing.
type ExpectationsStore struct {
	options Options
	seed    maphash.Seed
	shards  [shards]shard
}

// NewExpectationsStore returns an empty store that keeps expectations until they are met or removed.
func NewExpectationsStore() *ExpectationsStore { return NewExpectationsStoreWithOptions(Options{}) }

// NewExpectationsStoreWithOptions returns an empty store with these options.
func NewExpectationsStoreWithOptions(options Options) *ExpectationsStore {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &ExpectationsStore{options: options, seed: maphash.MakeSeed()}
}

// ExpectCreations records that the objects with these UIDs were created for controlleeKey. A UID whose deletion is expected
// already is left out, since the deletion is newer. The key becomes known even without UIDs. The error is always nil.
func (s *ExpectationsStore) ExpectCreations(logger logr.Logger, controlleeKey string, uids ...types.UID) error {
	s.expectCreations(logger, controlleeKey, "", uids)
	return nil
}

// ExpectCreationsAt is ExpectCreations that also records the resource version at which the objects were created, for
// SyncExpectationsAt. All UIDs of one call share it: pass the version of the newest.
func (s *ExpectationsStore) ExpectCreationsAt(
	logger logr.Logger, controlleeKey, resourceVersion string, uids ...types.UID,
) error {
	s.expectCreations(logger, controlleeKey, resourceVersion, uids)
	return nil
}

func (s *ExpectationsStore) expectCreations(logger logr.Logger, key, resourceVersion string, uids []types.UID) {
	var created *createInfo
	if resourceVersion != "" || s.options.CreationTTL > 0 {
		created = &createInfo{resourceVersion: resourceVersion}
	}
	if s.options.CreationTTL > 0 {
		created.at = s.options.Clock.Now()
	}
	e := s.lockOrCreate(key)
	e.expectCreations(created, uids)
	e.mu.Unlock()
	s.log(logger, "creations expected", key, uids)
}

// ExpectDeletions records that the objects with these UIDs were or are about to be deleted for controlleeKey. It ends
// the expectation of their creation. The key becomes known even without UIDs. The error is always nil.
func (s *ExpectationsStore) ExpectDeletions(logger logr.Logger, controlleeKey string, uids ...types.UID) error {
	e := s.lockOrCreate(controlleeKey)
	e.expectDeletions(uids)
	e.mu.Unlock()
	s.log(logger, "deletions expected", controlleeKey, uids)
	return nil
}

// ObserveDeletions ends every expectation about these UIDs: they are gone, or their deletion failed. Unknown UIDs and keys
// are ignored.
func (s *ExpectationsStore) ObserveDeletions(logger logr.Logger, controlleeKey string, uids ...types.UID) {
	if e := s.lockKnown(controlleeKey); e != nil {
		e.observeDeletions(uids)
		e.mu.Unlock()
	}
	s.log(logger, "deletions observed", controlleeKey, uids)
}

// DeleteExpectations forgets the key and all that was expected for it. The error is always nil.
func (s *ExpectationsStore) DeleteExpectations(logger logr.Logger, controlleeKey string) error {
	if e := s.lockKnown(controlleeKey); e != nil {
		e.forget()
		e.mu.Unlock()
		s.log(logger, "expectations deleted", controlleeKey, nil)
	}
	return nil
}

// SyncExpectations drops the expectations that the cache has met, given the UIDs of the key's objects in the cache:
// those without and those with a deletion timestamp. A creation is met when its UID is in either list. A deletion is
// met when its UID is no longer in the first; UIDs of the second count as expected deletions while they are there.
// An unknown key stays unknown.
func (s *ExpectationsStore) SyncExpectations(
	controlleeKey string, existingNonTerminatingUIDs []types.UID, existingTerminatingUIDs []types.UID,
) {
	s.SyncExpectationsAt(controlleeKey, "", existingNonTerminatingUIDs, existingTerminatingUIDs)
}

// SyncExpectationsAt is SyncExpectations with the resource version that the cache had reached before its objects were
// listed, which cache.Store's LastStoreSyncResourceVersion returns. A creation recorded at or before that version whose
// UID is in neither list was there and is gone again, so it is dropped. Versions that cannot be compared drop nothing.
func (s *ExpectationsStore) SyncExpectationsAt(
	controlleeKey, resourceVersion string, existingNonTerminatingUIDs, existingTerminatingUIDs []types.UID,
) {
	e := s.lockKnown(controlleeKey)
	if e == nil {
		return
	}
	e.sync(existingNonTerminatingUIDs, existingTerminatingUIDs)
	if s.options.CreationTTL > 0 {
		e.dropUnseen(resourceVersion, s.options.Clock.Now().Add(-s.options.CreationTTL))
	} else if resourceVersion != "" {
		e.dropUnseen(resourceVersion, time.Time{})
	}
	e.mu.Unlock()
}

// shardFor returns the shard that holds the key's entry.
func (s *ExpectationsStore) shardFor(key string) (*shard, uint64) {
	hash := maphash.String(s.seed, key)
	// The shard is chosen by other bits than the slot in its table, or every shard would use few of its slots.
	return &s.shards[hash>>32%shards], hash
}

// lockOrCreate returns the key's entry with its lock held, and creates it for an unknown key.
func (s *ExpectationsStore) lockOrCreate(key string) *entry {
	sh, hash := s.shardFor(key)
	if e := sh.lockKnown(hash, key); e != nil {
		return e
	}
	return sh.lockOrCreate(hash, key)
}

// lockKnown returns the entry of a known key with its lock held, nil for an unknown key.
func (s *ExpectationsStore) lockKnown(key string) *entry {
	sh, hash := s.shardFor(key)
	return sh.lockKnown(hash, key)
}

func (s *ExpectationsStore) log(logger logr.Logger, what, key string, uids []types.UID) {
	if v := logger.V(logLevel); v.Enabled() {
		// The logger gets a copy, so that the callers' lists need no heap allocation when the level is disabled.
		v.Info(what, "controllee", key, "uids", slices.Clone(uids))
	}
}
