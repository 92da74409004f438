package keyed

import (
	"container/list"
	"time"
)

// failureLog holds the keys whose last operation failed, the oldest failure first. A record is dropped when the key
// succeeds, when an operation of another kind runs, and when it is old, so that keys which no longer exist are not kept
// for ever.
type failureLog struct {
	byKey  map[Key]*list.Element
	oldest *list.List // of *failure
}

// failure holds one key's failures in a row.
type failure struct {
	key   Key
	kind  string
	count int
	delay time.Duration // the backoff that the last failure began
	at    time.Time     // when the last failure happened
	err   error
}

func newFailureLog() failureLog {
	return failureLog{byKey: make(map[Key]*list.Element), oldest: list.New()}
}

func (l *failureLog) get(key Key) *failure {
	if element, ok := l.byKey[key]; ok {
		return element.Value.(*failure)
	}
	return nil
}

// add counts a failure. A failure of another kind than the last resets the count.
func (l *failureLog) add(key Key, kind string, err error, now time.Time, initial, limit time.Duration) {
	l.expire(now, 2*limit)
	record := l.get(key)
	if record == nil || record.kind != kind {
		l.drop(key)
		record = &failure{key: key, kind: kind, delay: initial}
		l.byKey[key] = l.oldest.PushBack(record)
	} else {
		record.delay = min(2*record.delay, limit)
		l.oldest.MoveToBack(l.byKey[key])
	}
	record.count++
	record.at, record.err = now, err
}

func (l *failureLog) drop(key Key) {
	if element, ok := l.byKey[key]; ok {
		l.oldest.Remove(element)
		delete(l.byKey, key)
	}
}

// expire drops the records whose last failure is longer ago than age. It costs what it drops.
func (l *failureLog) expire(now time.Time, age time.Duration) {
	for front := l.oldest.Front(); front != nil; front = l.oldest.Front() {
		record := front.Value.(*failure)
		if now.Sub(record.at) <= age {
			return
		}
		l.drop(record.key)
	}
}
