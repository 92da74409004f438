package expect

import (
	"sync"
	"sync/atomic"
)

const (
	// firstSlots is how many slots a shard's table begins with.
	firstSlots = 16
	// roomySlots is how far a table grows before keys with nothing expected are forgotten: an owner that is worked
	// on again and again should keep its entry, and those of deleted owners should not pile up.
	roomySlots = 512
)

// table finds entries by key. It is an open-addressed hash table that is read without a lock, because a controller
// reads its expectations far more often than it changes them; the writers hold the shard's lock. A slot is filled
// once and never emptied: a table that has become too full is replaced by another.
type table []atomic.Pointer[entry]

// find gives the entry of the key, nil if there is none.
func (t table) find(hash uint64, key string) *entry {
	for i := hash; ; i++ {
		e := t[i%uint64(len(t))].Load()
		if e == nil || (e.hash == hash && e.key == key) {
			return e
		}
	}
}

// put adds an entry that is not there. The caller holds the shard's lock and has made sure that there is room.
func (t table) put(e *entry) {
	for i := e.hash; ; i++ {
		if slot := &t[i%uint64(len(t))]; slot.Load() == nil {
			slot.Store(e)
			return
		}
	}
}

// shard holds the entries of the keys that hash to it.
type shard struct {
	table atomic.Pointer[table]

	mu   sync.Mutex // serialises changes of the table and of its entries
	used int        // filled slots of the table
}

// find gives the key's entry, which may be of a forgotten key, or nil. It needs no lock.
func (sh *shard) find(hash uint64, key string) *entry {
	if t := sh.table.Load(); t != nil {
		return t.find(hash, key)
	}
	return nil
}

// known gives the entry of a key that was not forgotten, nil otherwise. The caller holds mu.
func (sh *shard) known(hash uint64, key string) *entry {
	if e := sh.find(hash, key); e != nil && e.shown.Load() != nil {
		return e
	}
	return nil
}

// obtain gives the key's entry, making it if need be. The caller holds mu.
func (sh *shard) obtain(hash uint64, key string) *entry {
	if e := sh.find(hash, key); e != nil {
		e.shown.CompareAndSwap(nil, &nothing) // it may have been forgotten, and is known again
		return e
	}
	if t := sh.table.Load(); t == nil || 4*(sh.used+1) > 3*len(*t) {
		sh.rebuild()
	}
	e := &entry{key: key, hash: hash}
	e.shown.Store(&nothing)
	sh.table.Load().put(e)
	sh.used++
	return e
}

// rebuild replaces the table by one with room, without the keys that are forgotten or, once it is roomy, expect
// nothing. Its size doubles with what is left, so that the cost is spread over the insertions since the last time. A
// reader of the old table sees what was true when it began. The caller holds mu.
func (sh *shard) rebuild() {
	var kept []*entry
	if old := sh.table.Load(); old != nil {
		roomy := len(*old) >= roomySlots
		for i := range *old {
			if e := (*old)[i].Load(); e != nil && e.shown.Load() != nil && (e.expects() || !roomy) {
				kept = append(kept, e)
			}
		}
	}
	slots := firstSlots
	for slots < 2*len(kept) {
		slots *= 2
	}
	fresh := make(table, slots)
	for _, e := range kept {
		fresh.put(e)
	}
	sh.used = len(kept)
	sh.table.Store(&fresh)
}

// count adds what the shard holds to the size.
func (sh *shard) count(size *Size) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	t := sh.table.Load()
	if t == nil {
		return
	}
	for i := range *t {
		if e := (*t)[i].Load(); e != nil && e.shown.Load() != nil {
			size.Keys++
			size.Creations += len(e.creations)
			size.Deletions += len(e.deletions)
		}
	}
}
