// Package deadlines keeps a time for each of many keys and returns the keys whose time has come, the earliest first.
//
// It has no timer and no lock: the owner waits until the time that Next returns, and guards the queue.
package deadlines

import (
	"container/heap"
	"time"
)

// Queue holds at most one deadline for each key. Create it with New.
type Queue[K comparable] struct {
	heap  entries[K]
	byKey map[K]*entry[K]
}

type entry[K comparable] struct {
	key   K
	at    time.Time
	index int // in the heap
}

// New returns an empty queue.
func New[K comparable]() *Queue[K] { return &Queue[K]{byKey: make(map[K]*entry[K])} }

// Set sets the key's deadline, in place of one that it may have. It reports whether the queue's earliest deadline may
// have changed, so that the owner has to set its timer anew.
func (q *Queue[K]) Set(key K, at time.Time) bool {
	known := q.byKey[key]
	if known == nil {
		known = &entry[K]{key: key, at: at}
		q.byKey[key] = known
		heap.Push(&q.heap, known)
		return known.index == 0
	}
	first := known.index == 0
	known.at = at
	heap.Fix(&q.heap, known.index)
	return first || known.index == 0
}

// Remove removes the key's deadline, if it has one.
func (q *Queue[K]) Remove(key K) {
	if known := q.byKey[key]; known != nil {
		heap.Remove(&q.heap, known.index)
		delete(q.byKey, key)
	}
}

// Has reports whether the key has a deadline.
func (q *Queue[K]) Has(key K) bool { return q.byKey[key] != nil }

// Next returns the earliest deadline, false if there is none.
func (q *Queue[K]) Next() (time.Time, bool) {
	if len(q.heap) == 0 {
		return time.Time{}, false
	}
	return q.heap[0].at, true
}

// PopDue removes the key with the earliest deadline and returns it, if that deadline is not after now.
func (q *Queue[K]) PopDue(now time.Time) (key K, ok bool) {
	if len(q.heap) == 0 || q.heap[0].at.After(now) {
		return key, false
	}
	key = q.heap[0].key
	q.Remove(key)
	return key, true
}

// PopAllDue removes all keys whose deadlines are not after now and returns them, the earliest first.
func (q *Queue[K]) PopAllDue(now time.Time) (due []K) {
	for key, ok := q.PopDue(now); ok; key, ok = q.PopDue(now) {
		due = append(due, key)
	}
	return due
}

// Len returns the number of deadlines.
func (q *Queue[K]) Len() int { return len(q.heap) }

// entries implements heap.Interface; each entry knows its index.
type entries[K comparable] []*entry[K]

var _ heap.Interface = (*entries[string])(nil)

func (e entries[K]) Len() int           { return len(e) }
func (e entries[K]) Less(i, j int) bool { return e[i].at.Before(e[j].at) }
func (e entries[K]) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].index, e[j].index = i, j
}

// Push implements heap.Interface.
func (e *entries[K]) Push(x any) {
	added := x.(*entry[K])
	added.index = len(*e)
	*e = append(*e, added)
}

// Pop implements heap.Interface.
func (e *entries[K]) Pop() any {
	last := len(*e) - 1
	removed := (*e)[last]
	(*e)[last] = nil
	*e = (*e)[:last]
	return removed
}
