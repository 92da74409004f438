package expect

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// ControlleeExpectations is what was expected for one key at the moment it was read. It does not change afterwards.
// The UID of a created object is known only once the Create call has returned, so that is when it is recorded; that
// of a deleted one is known before.
type ControlleeExpectations struct {
	creations []types.UID
	deletions []types.UID
}

// Creations are the UIDs of created objects that the cache had not shown, sorted. The slice must not be modified.
func (c *ControlleeExpectations) Creations() []types.UID { return c.creations }

// Deletions are the UIDs of objects whose deletion the cache had not shown, sorted. The slice must not be modified.
func (c *ControlleeExpectations) Deletions() []types.UID { return c.deletions }

// GetExpectations returns a snapshot of what is expected for the key, and whether the key is known; (nil, false, nil)
// if not. The error is always nil.
func (s *ExpectationsStore) GetExpectations(controlleeKey string) (*ControlleeExpectations, bool, error) {
	snapshot := s.snapshot(controlleeKey)
	return snapshot, snapshot != nil, nil
}

// GetCreateExpectations returns the UIDs of created objects that the cache has not shown yet, sorted: nil for an
// unknown key, empty for one with nothing expected. The slice is a snapshot and must not be modified.
func (s *ExpectationsStore) GetCreateExpectations(controlleeKey string) []types.UID {
	if snapshot := s.snapshot(controlleeKey); snapshot != nil {
		return snapshot.creations
	}
	return nil
}

// GetDeleteExpectations returns the UIDs of objects whose deletion the cache has not shown yet, sorted: nil for an
// unknown key, empty for one with nothing expected. The slice is a snapshot and must not be modified.
func (s *ExpectationsStore) GetDeleteExpectations(controlleeKey string) []types.UID {
	if snapshot := s.snapshot(controlleeKey); snapshot != nil {
		return snapshot.deletions
	}
	return nil
}

// HasDeleteExpectation reports whether the deletion of the object with this UID is expected for the key.
func (s *ExpectationsStore) HasDeleteExpectation(controlleeKey string, uid types.UID) bool {
	snapshot := s.snapshot(controlleeKey)
	if snapshot == nil {
		return false
	}
	_, found := slices.BinarySearch(snapshot.deletions, uid)
	return found
}

// snapshot returns the key's snapshot, nil if the key is unknown. Only the first read after a change takes the lock.
func (s *ExpectationsStore) snapshot(key string) *ControlleeExpectations {
	sh, hash := s.shardFor(key)
	e := sh.find(hash, key)
	if e == nil {
		return nil
	}
	if snapshot := e.snapshotPtr.Load(); snapshot != &staleExpectations {
		return snapshot
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.snapshot()
}

// Size counts what the store holds: known keys, expected creations, expected deletions.
type Size struct{ Keys, Creations, Deletions int }

// Size counts what the store holds. It reads one shard after the other, so the result is approximate while the store
// changes.
func (s *ExpectationsStore) Size() Size {
	var size Size
	for i := range s.shards {
		s.shards[i].count(&size)
	}
	return size
}

// collector exports the store's size to Prometheus.
type collector struct {
	store                      *ExpectationsStore
	keys, creations, deletions *prometheus.Desc
}

var _ prometheus.Collector = (*collector)(nil)

// NewCollector returns a Prometheus collector of the store's size: the gauges berth_expectations_keys, _creations and
// _deletions with the label controller set to name. The caller registers it.
func NewCollector(name string, store *ExpectationsStore) prometheus.Collector {
	describe := func(what, help string) *prometheus.Desc {
		return prometheus.NewDesc("berth_expectations_"+what, help, nil, prometheus.Labels{"controller": name})
	}
	return &collector{
		store:     store,
		keys:      describe("keys", "Owners that the expectations store knows."),
		creations: describe("creations", "Created objects that the cache has not shown yet."),
		deletions: describe("deletions", "Deleted objects that the cache still shows, or shows terminating."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.keys
	ch <- c.creations
	ch <- c.deletions
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	size := c.store.Size()
	for desc, value := range map[*prometheus.Desc]int{
		c.keys: size.Keys, c.creations: size.Creations, c.deletions: size.Deletions,
	} {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value))
	}
}
