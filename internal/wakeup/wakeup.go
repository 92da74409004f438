// Package wakeup wakes goroutines that wait for work: Signal wakes one, Broadcast wakes all.
//
// Both carry no data. What changed stands in the state that the woken goroutine reads, so a wake-up that comes while
// it works is never lost, and many that come at once cost one pass.
package wakeup

import "sync"

// Signal wakes the one goroutine that receives from C. Notifications that come before it receives are merged into
// one. Create it with NewSignal; any number of goroutines may notify.
type Signal struct{ ch chan struct{} }

// NewSignal returns a Signal that is not set.
func NewSignal() Signal { return Signal{ch: make(chan struct{}, 1)} }

// Notify sets the signal. It never blocks.
func (s Signal) Notify() {
	select {
	case s.ch <- struct{}{}:
	default:
	}
}

// C is the channel to receive from; a receive clears the signal.
func (s Signal) C() <-chan struct{} { return s.ch }

// Broadcast wakes every goroutine that waits. The zero value is ready; it must not be copied. All methods may be called by
// any number of goroutines.
//
// A waiter takes the channel before it reads the state that it waits for:
//
//	for {
//		changed := b.Changed()
//		if done() {
//			return
//		}
//		<-changed
//	}
type Broadcast struct {
	mu sync.Mutex
	ch chan struct{} // guarded by mu; nil until a goroutine waits
}

// Changed returns a channel that the next Notify closes.
func (b *Broadcast) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

// Notify wakes all that wait on a channel of Changed.
func (b *Broadcast) Notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}
