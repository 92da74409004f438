// Package keylock has locks by key, whose waiters can give up.
package keylock

import (
	"context"
	"sync"
)

// Locks are locks, one for each key. The zero value is ready. They are safe for concurrent use, and a key that is not in use costs nothing.
type Locks[K comparable] struct {
	mu   sync.Mutex // guards held
	held map[K]*lock
}

// lock is the lock of one key. Its users, who have it or wait for it, are counted by the mutex of Locks.
type lock struct {
	users int
	turn  chan struct{} // holds one element while it is held
}

// Lock waits until the caller has the lock of the key, or ctx ends, whose error it returns then. The caller calls unlock once.
func (l *Locks[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	one := l.enter(key)
	select {
	case one.turn <- struct{}{}:
		return func() {
			<-one.turn
			l.leave(key, one)
		}, nil
	case <-ctx.Done():
		l.leave(key, one)
		return nil, ctx.Err()
	}
}

func (l *Locks[K]) enter(key K) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		l.held = make(map[K]*lock)
	}
	one := l.held[key]
	if one == nil {
		one = &lock{turn: make(chan struct{}, 1)}
		l.held[key] = one
	}
	one.users++
	return one
}

func (l *Locks[K]) leave(key K, one *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one.users--; one.users == 0 {
		delete(l.held, key)
	}
}
