package reconciler

import (
	"container/heap"
	"time"

	"github.com/berth-dev/berth/attachdetach/cache"
)

// deadlines is when pairs are to be looked at again, the nearest first. A pair has one deadline at most. A pair without
// volume stands for its node.
type deadlines struct {
	heap  []*deadline
	pairs map[cache.VolumeNode]*deadline
}

type deadline struct {
	pair  cache.VolumeNode
	at    time.Time
	index int
}

func newDeadlines() *deadlines { return &deadlines{pairs: make(map[cache.VolumeNode]*deadline)} }

// set gives the pair a deadline in place of the one that it has.
func (d *deadlines) set(pair cache.VolumeNode, at time.Time) {
	if known := d.pairs[pair]; known != nil {
		known.at = at
		heap.Fix(d, known.index)
		return
	}
	entry := &deadline{pair: pair, at: at}
	d.pairs[pair] = entry
	heap.Push(d, entry)
}

// drop takes the pair's deadline away, if it has one.
func (d *deadlines) drop(pair cache.VolumeNode) {
	if known := d.pairs[pair]; known != nil {
		heap.Remove(d, known.index)
		delete(d.pairs, pair)
	}
}

// due takes out and returns the pairs whose time has come.
func (d *deadlines) due(now time.Time) []cache.VolumeNode {
	var pairs []cache.VolumeNode
	for len(d.heap) > 0 && !d.heap[0].at.After(now) {
		pairs = append(pairs, d.heap[0].pair)
		d.drop(d.heap[0].pair)
	}
	return pairs
}

// next is the nearest deadline, false if there is none.
func (d *deadlines) next() (time.Time, bool) {
	if len(d.heap) == 0 {
		return time.Time{}, false
	}
	return d.heap[0].at, true
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (d *deadlines) Len() int           { return len(d.heap) }
func (d *deadlines) Less(i, j int) bool { return d.heap[i].at.Before(d.heap[j].at) }
func (d *deadlines) Swap(i, j int) {
	d.heap[i], d.heap[j] = d.heap[j], d.heap[i]
	d.heap[i].index, d.heap[j].index = i, j
}

func (d *deadlines) Push(x any) {
	entry := x.(*deadline)
	entry.index = len(d.heap)
	d.heap = append(d.heap, entry)
}

func (d *deadlines) Pop() any {
	last := len(d.heap) - 1
	entry := d.heap[last]
	d.heap[last] = nil
	d.heap = d.heap[:last]
	return entry
}
