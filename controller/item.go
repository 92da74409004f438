package controller

// item is the queue's state of one key. It exists only while the key is ready, running or delayed. The lists of ready and
// running items link the items themselves, so that moving one allocates nothing. The queue's lock guards it.
type item[R comparable] struct {
	key        R
	next, prev *item[R]
	// since is when the key became ready or began to run, in nanoseconds of queue.now.
	since int64
	// dueAt is when the key is to run by its own last result, requestedAt when by a caller of addAfter; 0 is never. They
	// are separate because a run replaces the first, not the second.
	dueAt, requestedAt int64
	// failures counts the rate-limited results in a row.
	failures int32
	state    state
	level    priority
	// again is set if the key was added while running; level is then the priority of that add.
	again bool
	// limited is set while dueAt is a delay after a failure.
	limited bool
}

// state is the life-cycle state of an item.
type state uint8

const (
	stateDelayed state = iota // has a deadline only
	stateReady                // in a ready list
	stateRunning              // in the running list
)

// priority is the priority of a key.
type priority uint8

const (
	priorityBackground priority = iota // initial list, resyncs
	priorityLive                       // something changed
	priorities
)

// list is a doubly linked list through the items themselves.
type list[R comparable] struct {
	front, back *item[R]
	len         int
}

func (l *list[R]) push(it *item[R]) {
	it.prev, it.next = l.back, nil
	if l.back == nil {
		l.front = it
	} else {
		l.back.next = it
	}
	l.back = it
	l.len++
}

func (l *list[R]) remove(it *item[R]) {
	if it.prev == nil {
		l.front = it.next
	} else {
		it.prev.next = it.next
	}
	if it.next == nil {
		l.back = it.prev
	} else {
		it.next.prev = it.prev
	}
	it.next, it.prev = nil, nil
	l.len--
}

// oldest returns the earliest since in the list, 0 if the list is empty.
func (l *list[R]) oldest() int64 {
	var earliest int64
	for it := l.front; it != nil; it = it.next {
		if earliest == 0 || it.since < earliest {
			earliest = it.since
		}
	}
	return earliest
}

// wakeAt is the earlier of due and asked, 0 if both are never.
func (it *item[R]) wakeAt() int64 {
	if it.dueAt == 0 || (it.requestedAt != 0 && it.requestedAt < it.dueAt) {
		return it.requestedAt
	}
	return it.dueAt
}
