package controller

import (
	"context"
	"hash/maphash"
	"math"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// maxLiveStreak is how many live keys may go in a row before a waiting background key gets a turn.
const maxLiveStreak = 32

// outcome is what becomes of a key after a run.
type outcome struct {
	rateLimited  bool          // again after a delay that grows with each one in a row
	requeueAfter time.Duration // again after this time, if positive and not limited
}

// queue hands each key to one worker at a time. It starts no goroutine: delays needs one of the caller's.
type queue[R comparable] struct {
	clock    clock.WithTicker
	min, max time.Duration // bounds of the delay after a failure

	wake chan struct{} // gets a value when the first entry of later has changed

	// hash need not tell keys apart, only mostly.
	hash func(R) uint64

	mu       sync.Mutex // guards all below, and the items
	notEmpty sync.Cond  // workers that wait for a key
	// items are found by the hash of their keys: the keys themselves are in the items, and a million of them should
	// not be held twice.
	items      map[uint64]*item[R]
	ready      [priorities]list[R]
	running    list[R]
	delayed    delayHeap[R]
	liveStreak int // live keys in a row while a background key waited
	closed     bool
	counts     counts
}

// counts are the running totals of a queue.
type counts struct {
	adds    [priorities]uint64
	retries uint64
	limited int           // keys that now wait after a failure
	waited  time.Duration // the sum of the delays imposed after failures
}

func newQueue[R comparable](clock clock.WithTicker, shortest, longest time.Duration) *queue[R] {
	seed := maphash.MakeSeed()
	q := &queue[R]{
		clock: clock, min: shortest, max: longest, wake: make(chan struct{}, 1),
		hash: func(key R) uint64 { return maphash.Comparable(seed, key) }, items: make(map[uint64]*item[R]),
	}
	q.notEmpty.L = &q.mu
	return q
}

// add makes the key ready, or marks it to run again if it is running. A closed queue takes nothing.
func (q *queue[R]) add(key R, priority priority) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.counts.adds[priority]++
	it := q.getOrCreate(key)
	switch {
	case it.state == stateRunning:
		if !it.again || priority > it.level {
			it.level = priority
		}
		it.again = true
	case it.state == stateDelayed:
		q.makeReady(it, priority)
	case priority > it.level:
		q.ready[it.level].remove(it)
		it.level = priority
		q.ready[priority].push(it)
	}
}

// addAfter makes the key ready after d. Of several such requests for one key the earliest counts.
func (q *queue[R]) addAfter(key R, d time.Duration) {
	if d <= 0 {
		q.add(key, priorityLive)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	it := q.getOrCreate(key)
	if at := q.clock.Now().Add(d).UnixNano(); it.requestedAt == 0 || at < it.requestedAt {
		it.requestedAt = at
		q.schedule(it)
	}
}

// get waits for a key and gives it to the caller, who must call done with it. waited is how long the key was ready.
// It returns false once the queue is closed.
func (q *queue[R]) get() (key R, waited time.Duration, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if q.closed {
			return key, 0, false
		}
		if it := q.next(); it != nil {
			now := q.clock.Now().UnixNano()
			waited = time.Duration(now - it.since)
			it.state, it.since = stateRunning, now
			q.running.push(it)
			q.setDue(it, 0, false) // this run takes the place of the one that its last result asked for
			return it.key, waited, true
		}
		q.notEmpty.Wait()
	}
}

// next takes the first key off the ready lists, nil if there is none. The caller holds mu.
func (q *queue[R]) next() *item[R] {
	live, background := &q.ready[priorityLive], &q.ready[priorityBackground]
	from := live
	if live.front == nil || (background.front != nil && q.liveStreak >= maxLiveStreak) {
		from = background
	}
	if from.front == nil {
		return nil
	}
	if from == live && background.front != nil {
		q.liveStreak++
	} else {
		q.liveStreak = 0
	}
	it := from.front
	from.remove(it)
	return it
}

// done gives back a key from get, with what is to become of it, and tells how long it ran.
func (q *queue[R]) done(key R, result outcome) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.getOrCreate(key) // it is there: get made it run
	now := q.clock.Now().UnixNano()
	ran := time.Duration(now - it.since)
	q.running.remove(it)
	it.state = stateDelayed
	switch {
	case result.rateLimited:
		delay := q.backoff(it.failures)
		it.failures++
		q.counts.retries++
		q.counts.waited += delay
		q.setDue(it, now+int64(delay), true)
	case result.requeueAfter > 0:
		it.failures = 0
		q.setDue(it, now+int64(result.requeueAfter), false)
	default:
		it.failures = 0
	}
	if it.again && !q.closed {
		q.makeReady(it, it.level)
	}
	q.dropIfIdle(it)
	return ran
}

// backoff is the delay after so many failures: min, twice min, …, at most max.
func (q *queue[R]) backoff(failures int32) time.Duration {
	delay := float64(q.min) * math.Pow(2, float64(failures))
	if delay > float64(q.max) {
		return q.max
	}
	return time.Duration(delay)
}

// getOrCreate gives the key's item, making it if need be. The caller holds mu.
func (q *queue[R]) getOrCreate(key R) *item[R] {
	hash := q.hash(key)
	first := q.items[hash]
	for it := first; it != nil; it = it.hashNext {
		if it.key == key {
			return it
		}
	}
	it := &item[R]{key: key, hashNext: first}
	q.items[hash] = it
	return it
}

// dropIfIdle forgets an item with nothing left to do. The caller holds mu.
func (q *queue[R]) dropIfIdle(it *item[R]) {
	if it.state != stateDelayed || it.heapIndex != 0 {
		return
	}
	hash := q.hash(it.key)
	first := q.items[hash]
	switch {
	case first == it && it.hashNext == nil:
		delete(q.items, hash)
	case first == it:
		q.items[hash] = it.hashNext
	default:
		for ; first.hashNext != it; first = first.hashNext {
		}
		first.hashNext = it.hashNext
	}
	it.hashNext = nil
}

// makeReady lets the item run at the next turn. The caller holds mu.
func (q *queue[R]) makeReady(it *item[R], priority priority) {
	it.state, it.level, it.again = stateReady, priority, false
	it.since = q.clock.Now().UnixNano()
	q.ready[priority].push(it)
	q.notEmpty.Signal()
}

// setDue sets when the item's result wants it to run. The caller holds mu.
func (q *queue[R]) setDue(it *item[R], at int64, limited bool) {
	if it.limited != limited {
		it.limited = limited
		if limited {
			q.counts.limited++
		} else {
			q.counts.limited--
		}
	}
	if it.dueAt == at {
		return
	}
	it.dueAt = at
	q.schedule(it)
}

// schedule puts the item at its place among those to run later. The caller holds mu.
func (q *queue[R]) schedule(it *item[R]) {
	q.delayed.set(it)
	if it.heapIndex == 1 {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

// runTimer makes keys ready when they are due, until ctx ends.
func (q *queue[R]) runTimer(ctx context.Context) {
	timer := q.clock.NewTimer(time.Hour) // set below before it matters
	defer timer.Stop()
	for {
		var fire <-chan time.Time
		if wait, any := q.promoteDue(); any {
			// A fired timer that nobody read is of no consequence: ripen looks at the clock itself.
			timer.Reset(wait)
			fire = timer.C()
		}
		select {
		case <-ctx.Done():
			return
		case <-q.wake:
		case <-fire:
		}
	}
}

// promoteDue makes ready what is due, and returns the time until the next key is due, if there is one.
func (q *queue[R]) promoteDue() (wait time.Duration, any bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.delayed) > 0 {
		it, now := q.delayed[0], q.clock.Now().UnixNano()
		if it.wakeAt() > now {
			return time.Duration(it.wakeAt() - now), true
		}
		if it.requestedAt != 0 && it.requestedAt <= now {
			it.requestedAt = 0
		}
		if it.dueAt != 0 && it.dueAt <= now {
			q.setDue(it, 0, false)
		}
		q.delayed.set(it)
		switch {
		case q.closed:
			q.dropIfIdle(it)
		case it.state == stateRunning:
			it.again, it.level = true, priorityLive
		case it.state == stateDelayed:
			q.makeReady(it, priorityLive)
		}
	}
	return 0, false
}

// close wakes the workers; get returns false from now on, and add takes nothing.
func (q *queue[R]) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.notEmpty.Broadcast()
}

// stats is what a queue holds at one moment.
type stats struct {
	counts
	depth      [priorities]int
	delayed    int
	running    int
	oldest     time.Duration // the longest that a ready key has waited
	longest    time.Duration // the longest that a key has been running
	unfinished time.Duration // the sum over all running keys
}

func (q *queue[R]) stats() stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.clock.Now().UnixNano()
	s := stats{counts: q.counts, delayed: len(q.delayed), running: q.running.len}
	for priority := range q.ready {
		s.depth[priority] = q.ready[priority].len
		if since := q.ready[priority].oldest(); since != 0 {
			s.oldest = max(s.oldest, time.Duration(now-since))
		}
	}
	for it := q.running.front; it != nil; it = it.next {
		s.unfinished += time.Duration(now - it.since)
		s.longest = max(s.longest, time.Duration(now-it.since))
	}
	return s
}
