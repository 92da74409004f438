package memory

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// IdleAfter is how long nothing may have happened for a process to count as at rest.
const IdleAfter = 10 * time.Second

// IdleWatcher calls a function once each time that work has come to rest. It is safe for concurrent use.
type IdleWatcher struct {
	clock    clock.Clock
	release  func()
	activity chan struct{}
}

// NewIdleWatcher makes a Keeper. release, usually Release, is called from the goroutine of Start. clk may be nil.
func NewIdleWatcher(clk clock.Clock, release func()) *IdleWatcher {
	if clk == nil {
		clk = clock.RealClock{}
	}
	return &IdleWatcher{clock: clk, release: release, activity: make(chan struct{}, 1)}
}

// NoteActivity says that something happens. It does not block.
func (w *IdleWatcher) NoteActivity() {
	select {
	case w.activity <- struct{}{}:
	default:
	}
}

// Start works until ctx ends. The start itself counts as something that happens; later, while nobody calls Touch, there
// is no timer.
func (w *IdleWatcher) Start(ctx context.Context) error {
	for {
		if !w.waitIdle(ctx) {
			return nil
		}
		w.release()
		select {
		case <-ctx.Done():
			return nil
		case <-w.activity:
		}
	}
}

// waitIdle waits until nothing has happened for Rest, and reports whether ctx goes on.
func (w *IdleWatcher) waitIdle(ctx context.Context) bool {
	timer := w.clock.NewTimer(IdleAfter)
	defer timer.Stop()
	for active := false; ; {
		select {
		case <-ctx.Done():
			return false
		case <-w.activity:
			active = true // looked at when the timer fires: much may happen until then
		case <-timer.C():
			if !active {
				return true
			}
			active = false
			timer.Reset(IdleAfter)
		}
	}
}
