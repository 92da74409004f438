// Package delay calls a function later, by any clock.
package delay

import (
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
)

// Call is a call that will come.
type Call struct {
	stop func()
	done chan struct{}
}

// After calls fn once, after d, in a goroutine of its own, unless Stop comes first.
func After(c clock.Clock, d time.Duration, fn func()) *Call {
	stopped := make(chan struct{})
	call := &Call{stop: sync.OnceFunc(func() { close(stopped) }), done: make(chan struct{})}
	timer := c.NewTimer(d)
	go func() {
		defer close(call.done)
		defer timer.Stop()
		select {
		case <-timer.C():
			contain.Guard("delay.After", "", fn)()
		case <-stopped:
		}
	}()
	return call
}

// Stop cancels the call, unless it has begun. It may be called again, also by the call itself.
func (c *Call) Stop() { c.stop() }

// Wait returns when the call has ended or was cancelled.
func (c *Call) Wait() { <-c.done }
