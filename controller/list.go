package controller

// item is what the queue knows of one key. It exists only while the key is waiting, running, or to run later, and
// is linked into the list or heap of that state, so that moving it allocates nothing. The queue's lock guards it.
type item[R comparable] struct {
	key        R
	next, prev *item[R]
	// sibling is another item whose key has the same hash.
	sibling *item[R]
	// since is when the key became ready or began to run, in nanoseconds of the queue's clock.
	since int64
	// due is when the key is to run by its own last result, asked when by a caller of addAfter; 0 is never. They
	// are apart because a run takes the place of the first, not of the second.
	due, asked int64
	// place is the item's index in the heap plus one, 0 if it is not in it.
	place int32
	// failures counts the rate-limited results in a row.
	failures int32
	state    state
	level    level
	// again is set if the key was added while running; level then holds how urgent that is.
	again bool
	// limited is set while due is a delay after a failure.
	limited bool
}

// state is where an item is.
type state uint8

const (
	stateLater   state = iota // in the heap only
	stateReady                // in a ready list
	stateRunning              // in the running list
)

// level is the urgency of a key.
type level uint8

const (
	levelBackground level = iota // initial list, resyncs
	levelLive                    // something happened
	levels
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

// when is the earlier of due and asked, 0 if both are never.
func (it *item[R]) when() int64 {
	if it.due == 0 || (it.asked != 0 && it.asked < it.due) {
		return it.asked
	}
	return it.due
}

// agenda is a binary heap of items by when; each item knows its place.
type agenda[R comparable] []*item[R]

// set puts the item where its due and asked belong, or takes it out if both are never.
func (a *agenda[R]) set(it *item[R]) {
	if it.when() == 0 {
		a.drop(it)
		return
	}
	if it.place == 0 {
		*a = append(*a, it)
		it.place = int32(len(*a))
	}
	a.settle(int(it.place) - 1)
}

func (a *agenda[R]) drop(it *item[R]) {
	if it.place == 0 {
		return
	}
	i, last := int(it.place)-1, len(*a)-1
	if i != last {
		a.swap(i, last)
	}
	(*a)[last] = nil
	*a = (*a)[:last]
	it.place = 0
	if i != last {
		a.settle(i)
	}
}

// settle moves the item at i up or down to where the order of the heap is kept.
func (a *agenda[R]) settle(i int) {
	h := *a
	for i > 0 && h[i].when() < h[(i-1)/2].when() {
		a.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h[child].when() < h[least].when() {
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

func (a *agenda[R]) swap(i, j int) {
	h := *a
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = int32(i)+1, int32(j)+1
}
