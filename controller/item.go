package controller

// item is what the queue knows of one key. It exists only while the key is waiting, running, or to run later, and
// is linked into the list or heap of that state, so that moving it allocates nothing. The queue's lock guards it.
type item[R comparable] struct {
	key        R
	next, prev *item[R]
	// hashNext is another item whose key has the same hash.
	hashNext *item[R]
	// since is when the key became ready or began to run, in nanoseconds of the queue's clock.
	since int64
	// dueAt is when the key is to run by its own last result, asked when by a caller of addAfter; 0 is never. They
	// are apart because a run takes the place of the first, not of the second.
	dueAt, requestedAt int64
	// heapIndex is the item's index in the heap plus one, 0 if it is not in it.
	heapIndex int32
	// failures counts the rate-limited results in a row.
	failures int32
	state    state
	level    priority
	// again is set if the key was added while running; level then holds how urgent that is.
	again bool
	// limited is set while due is a delay after a failure.
	limited bool
}

// state is where an item is.
type state uint8

const (
	stateDelayed state = iota // in the heap only
	stateReady                // in a ready list
	stateRunning              // in the running list
)

// priority is the urgency of a key.
type priority uint8

const (
	priorityBackground priority = iota // initial list, resyncs
	priorityLive                       // something happened
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

// oldest is the earliest since in the list, 0 if it is empty.
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

// delayHeap is a binary heap of items by when; each item knows its place.
type delayHeap[R comparable] []*item[R]

// set puts the item where its due and asked belong, or takes it out if both are never.
func (a *delayHeap[R]) set(it *item[R]) {
	if it.wakeAt() == 0 {
		a.remove(it)
		return
	}
	if it.heapIndex == 0 {
		*a = append(*a, it)
		it.heapIndex = int32(len(*a))
	}
	a.fix(int(it.heapIndex) - 1)
}

func (a *delayHeap[R]) remove(it *item[R]) {
	if it.heapIndex == 0 {
		return
	}
	i, last := int(it.heapIndex)-1, len(*a)-1
	if i != last {
		a.swap(i, last)
	}
	(*a)[last] = nil
	*a = (*a)[:last]
	it.heapIndex = 0
	if i != last {
		a.fix(i)
	}
}

// fix moves the item at i up or down to where the order of the heap is kept.
func (a *delayHeap[R]) fix(i int) {
	h := *a
	for i > 0 && h[i].wakeAt() < h[(i-1)/2].wakeAt() {
		a.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h[child].wakeAt() < h[least].wakeAt() {
				least = child
			}
		}
		if least == i {
			return
		}
		a.swap(i, least)
		i = least
	}
}

func (a *delayHeap[R]) swap(i, j int) {
	h := *a
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = int32(i)+1, int32(j)+1
}
