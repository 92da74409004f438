package expect

import (
	"sync"
	"sync/atomic"
)

const (
	// firstSlots is how many slots a shard's table begins with.
	firstSlots = 16
	// largeTableSlots is the size up to which a table keeps keys with nothing expected: owners that are reconciled often
	// keep their entries, and those of deleted owners do not accumulate.
	largeTableSlots = 256
)

// table finds entries by key. It is an open-addressed hash table that is read without a lock, because a controller reads
// its expectations far more often than it changes them: a read takes two thirds of a sync.Map's time, see
// BenchmarkReadParallel. A writer holds the shard's lock. A slot is filled once and never emptied: a table that has become
// too full is replaced. The number of slots is a power of 2.
type table []slot

// slot has the hash beside the entry, so that a search rarely reads the entry of another key.
type slot struct {
	entry atomic.Pointer[entry]
	hash  uint64 // written before the entry is, and never again
}

// find returns the entry of the key, nil if there is none.
func (t table) find(hash uint64, key string) *entry {
	for i := hash; ; i++ {
		s := &t[i&uint64(len(t)-1)]
		e := s.entry.Load()
		if e == nil || (s.hash == hash && e.key == key) {
			return e
		}
	}
}

// put adds an entry that the table does not have. The caller has checked that a slot is free.
func (t table) put(hash uint64, e *entry) {
	for i := hash; ; i++ {
		if s := &t[i&uint64(len(t)-1)]; s.entry.Load() == nil {
			s.hash = hash
			s.entry.Store(e)
			return
		}
	}
}

// shard holds the entries of the keys that hash to it. Its lock is taken only to create an entry, before that of the entry;
// otherwise only users of the same key wait for each other.
type shard struct {
	table atomic.Pointer[table]

	mu   sync.Mutex // serialises changes of the table
	used int        // filled slots of the table
}

// find returns the key's entry, nil if there is none. The key may be unknown by now. It needs no lock.
func (sh *shard) find(hash uint64, key string) *entry {
	if t := sh.table.Load(); t != nil {
		return t.find(hash, key)
	}
	return nil
}

// lockKnown returns the entry of a known key with its lock held, nil for an unknown key. If the table was replaced during
// the call without the entry, the key was unknown at some moment of the call, so that nil is correct.
func (sh *shard) lockKnown(hash uint64, key string) *entry {
	e := sh.find(hash, key)
	if e == nil {
		return nil
	}
	e.mu.Lock()
	if e.snapshotPtr.Load() == nil {
		e.mu.Unlock()
		return nil
	}
	return e
}

// lockOrCreate returns the key's entry with its lock held, and creates it for an unknown key.
func (sh *shard) lockOrCreate(hash uint64, key string) *entry {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.find(hash, key)
	if e == nil {
		if t := sh.table.Load(); t == nil || 4*(sh.used+1) > 3*len(*t) {
			sh.rebuild()
		}
		e = &entry{key: key}
		sh.table.Load().put(hash, e)
		sh.used++
	}
	e.mu.Lock()
	e.snapshotPtr.CompareAndSwap(nil, &emptyExpectations)
	return e
}

// rebuild replaces the table by one with free slots, without the keys that are unknown or, once the table is large, expect
// nothing. Its size doubles with what is left, so that the cost is spread over the insertions since the last time. A
// reader of the old table sees what was true when it began. The caller holds mu.
func (sh *shard) rebuild() {
	var old, kept table
	if t := sh.table.Load(); t != nil {
		old = *t
	}
	for i := range old {
		if e := old[i].entry.Load(); e != nil && e.keepOrForget(len(old) >= largeTableSlots) {
			kept = append(kept, slot{hash: old[i].hash})
			kept[len(kept)-1].entry.Store(e)
		}
	}
	slots := firstSlots
	for slots < 2*len(kept) {
		slots *= 2
	}
	fresh := make(table, slots)
	for i := range kept {
		fresh.put(kept[i].hash, kept[i].entry.Load())
	}
	sh.used = len(kept)
	sh.table.Store(&fresh)
}

// keepOrForget reports whether the entry stays in the table, and forgets the key of one that does not.
func (e *entry) keepOrForget(busyOnly bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.pending) == 0 && busyOnly {
		e.forget()
	}
	return e.snapshotPtr.Load() != nil
}

// count adds the shard's numbers to the size.
func (sh *shard) count(size *Size) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sh.table.Load()
	if t == nil {
		return
	}
	for i := range *t {
		if e := (*t)[i].entry.Load(); e != nil {
			e.addTo(size)
		}
	}
}

// addTo adds the entry to the size, unless its key is unknown.
func (e *entry) addTo(size *Size) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.snapshotPtr.Load() == nil {
		return
	}
	creations, deletions := e.count()
	size.Keys++
	size.Creations += creations
	size.Deletions += deletions
}
