package controller

import (
	"context"
	"math"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/deadlines"
	"github.com/berth-dev/berth/internal/wakeup"
)

// maxLiveStreak is how many live keys may go in a row before a waiting background key gets a turn.
const maxLiveStreak = 32

// outcome is what the queue does with a key after a run.
type outcome struct {
	rateLimited  bool          // run again after a delay that grows with each such outcome in a row
	requeueAfter time.Duration // run again after this time, if positive and not rateLimited
}

// queue hands each key to one worker at a time. It starts no goroutine; the caller runs runTimer in one.
type queue[R comparable] struct {
	clock    clock.WithTicker
	start    time.Time     // the times of the items count from it, so that none depends on the time of day, which may be set
	min, max time.Duration // bounds of the delay after a failure

	wake wakeup.Signal // the earliest deadline may have changed

	mu         sync.Mutex // guards all below, and the items
	notEmpty   sync.Cond  // workers that wait for a key
	items      map[R]*item[R]
	ready      [priorities]list[R]
	running    list[R]
	delayed    *deadlines.Queue[*item[R]]
	liveStreak int // live keys in a row while a background key waited
	closed     bool
	counts     counts
}

// counts are the running totals of a queue.
type counts struct {
	adds    [priorities]uint64
	retries uint64
	limited int           // keys that wait after a failure at present
	waited  time.Duration // the sum of the delays imposed after failures
}

func newQueue[R comparable](clock clock.WithTicker, shortest, longest time.Duration) *queue[R] {
	q := &queue[R]{
		clock: clock, start: clock.Now(), min: shortest, max: longest, wake: wakeup.NewSignal(),
		items: make(map[R]*item[R]), delayed: deadlines.New[*item[R]](),
	}
	q.notEmpty.L = &q.mu
	return q
}

// now returns the nanoseconds since the start, and one more, because 0 stands for never.
func (q *queue[R]) now() int64 { return int64(q.clock.Since(q.start)) + 1 }

// after returns the time that is d from now, or the last one that can be represented.
func (q *queue[R]) after(d time.Duration) int64 {
	now := q.now()
	return now + min(int64(d), math.MaxInt64-now)
}

// add marks the key as ready, or to run again if it is running. A closed queue ignores it.
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

// addAfter marks the key as ready after d. Of several such requests for one key, the earliest counts.
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
	if at := q.after(d); it.requestedAt == 0 || at < it.requestedAt {
		it.requestedAt = at
		q.schedule(it)
	}
}

// retryFailed marks the keys that wait for the delay after a failure as ready. A key that is running now runs once more.
func (q *queue[R]) retryFailed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for it := q.running.front; it != nil && !q.closed; it = it.next {
		if !it.again {
			it.again, it.level = true, priorityLive
		}
	}
	if q.counts.limited == 0 || q.closed {
		return
	}
	for _, it := range q.items {
		if it.limited && it.state == stateDelayed {
			q.makeReady(it, priorityLive)
		}
	}
}

// get waits for a ready key and returns it with the time that it was ready; the caller must call done with it. It returns
// false once the queue is closed.
func (q *queue[R]) get() (key R, waited time.Duration, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if q.closed {
			return key, 0, false
		}
		if it := q.next(); it != nil {
			now := q.now()
			waited = time.Duration(now - it.since)
			it.state, it.since = stateRunning, now
			q.running.push(it)
			q.setDue(it, 0, false) // this run replaces the one that its last result requested
			return it.key, waited, true
		}
		q.notEmpty.Wait()
	}
}

// next removes the first item from the ready lists and returns it, nil if there is none. The caller holds mu.
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

// done ends the run of a key from get, with its outcome, and returns how long it ran.
func (q *queue[R]) done(key R, result outcome) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	it := q.getOrCreate(key) // it exists: get returned it
	now := q.now()
	ran := time.Duration(now - it.since)
	q.running.remove(it)
	it.state = stateDelayed
	switch {
	case result.rateLimited:
		delay := q.backoff(it.failures)
		it.failures++
		q.counts.retries++
		q.counts.waited += delay
		q.setDue(it, q.after(delay), true)
	case result.requeueAfter > 0:
		it.failures = 0
		q.setDue(it, q.after(result.requeueAfter), false)
	default:
		it.failures = 0
	}
	if it.again && !q.closed {
		q.makeReady(it, it.level)
	}
	q.dropIfIdle(it)
	return ran
}

// backoff returns the delay after so many failures: min, twice min, …, at most max.
func (q *queue[R]) backoff(failures int32) time.Duration {
	delay := float64(q.min) * math.Pow(2, float64(failures))
	if delay > float64(q.max) {
		return q.max
	}
	return time.Duration(delay)
}

// getOrCreate returns the key's item, and creates it if there is none. The caller holds mu.
func (q *queue[R]) getOrCreate(key R) *item[R] {
	it := q.items[key]
	if it == nil {
		it = &item[R]{key: key}
		q.items[key] = it
	}
	return it
}

// dropIfIdle removes an item that is neither ready, running nor delayed. The caller holds mu.
func (q *queue[R]) dropIfIdle(it *item[R]) {
	if it.state == stateDelayed && it.wakeAt() == 0 {
		delete(q.items, it.key)
	}
}

// makeReady appends the item to the ready list of its priority. The caller holds mu.
func (q *queue[R]) makeReady(it *item[R], priority priority) {
	it.state, it.level, it.again = stateReady, priority, false
	it.since = q.now()
	q.ready[priority].push(it)
	q.notEmpty.Signal()
}

// setDue sets when the item is to run by its last result; 0 is never. The caller holds mu.
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

// schedule sets the item's deadline to the earlier of its two times. The caller holds mu.
func (q *queue[R]) schedule(it *item[R]) {
	at := it.wakeAt()
	if at == 0 {
		q.delayed.Remove(it)
	} else if q.delayed.Set(it, q.start.Add(time.Duration(at))) {
		q.wake.Notify()
	}
}

// runTimer marks delayed keys as ready when they are due, until ctx ends.
func (q *queue[R]) runTimer(ctx context.Context) {
	timer := q.clock.NewTimer(time.Hour) // reset below before it is read
	defer timer.Stop()
	for {
		var fire <-chan time.Time
		if wait, ok := q.promoteDue(); ok {
			// A value that the timer has sent before may still be in the channel; promoteDue compares with the clock.
			timer.Reset(wait)
			fire = timer.C()
		}
		select {
		case <-ctx.Done():
			return
		case <-q.wake.C():
		case <-fire:
		}
	}
}

// promoteDue marks the keys that are due as ready, and returns the time until the next key is due, false if none is.
func (q *queue[R]) promoteDue() (wait time.Duration, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		at, ok := q.delayed.Next()
		if !ok {
			return 0, false
		}
		now := q.now()
		current := q.start.Add(time.Duration(now))
		it, due := q.delayed.PopDue(current)
		if !due {
			return at.Sub(current), true
		}
		if it.requestedAt <= now {
			it.requestedAt = 0
		}
		if it.dueAt != 0 && it.dueAt <= now {
			q.setDue(it, 0, false)
		}
		q.schedule(it)
		switch {
		case q.closed:
			q.dropIfIdle(it)
		case it.state == stateRunning:
			it.again, it.level = true, priorityLive
		case it.state == stateDelayed:
			q.makeReady(it, priorityLive)
		}
	}
}

// close wakes the workers; from now on get returns false and add does nothing.
func (q *queue[R]) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.notEmpty.Broadcast()
}

// stats is the state of a queue at one moment.
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
	now := q.now()
	s := stats{counts: q.counts, delayed: q.delayed.Len(), running: q.running.len}
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
