package eventsink

import (
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/wakeup"
)

type verb int

const (
	create verb = iota
	update
	patch
)

// write is one request to make.
type write struct {
	event *corev1.Event
	verb  verb
	data  []byte // of a patch
}

// queue holds writes in the order in which they were added. It is safe for concurrent use.
type queue struct {
	limit int
	more  wakeup.Signal // notified when a write was added

	mu      sync.Mutex // guards all below
	writes  []write
	dropped int
}

func newQueue(limit int) *queue {
	return &queue{limit: limit, more: wakeup.NewSignal()}
}

// add never blocks: it drops the write if the queue is full.
func (q *queue) add(w write) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.writes) >= q.limit {
		q.dropped++
		return
	}
	q.writes = append(q.writes, w)
	q.more.Notify()
}

// take empties the queue. It returns how many writes were dropped since the last call, too.
func (q *queue) take() (writes []write, dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	writes, dropped = q.writes, q.dropped
	q.writes, q.dropped = nil, 0
	return writes, dropped
}
