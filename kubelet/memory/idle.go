package memory

import (
	"context"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
)

// IdleAfter is how long a process must be without activity to count as idle.
const IdleAfter = 10 * time.Second

// IdleWatcher calls a function once each time the process becomes idle. It is safe for concurrent use.
type IdleWatcher struct {
	clock    clock.Clock
	release  func()
	activity wakeup.Signal
}

// NewIdleWatcher returns an IdleWatcher. Start calls release, usually Release, from its own goroutine. A nil clock is
// the real one.
func NewIdleWatcher(c clock.Clock, release func()) *IdleWatcher {
	if c == nil {
		c = clock.RealClock{}
	}
	return &IdleWatcher{clock: c, release: release, activity: wakeup.NewSignal()}
}

// NoteActivity reports that the process is active. It does not block.
func (w *IdleWatcher) NoteActivity() { w.activity.Notify() }

// Start runs until ctx ends. It counts as activity itself; while the process is idle there is no timer.
func (w *IdleWatcher) Start(ctx context.Context) error {
	for {
		if !w.waitIdle(ctx) {
			return nil
		}
		w.release()
		select {
		case <-ctx.Done():
			return nil
		case <-w.activity.C():
		}
	}
}

// waitIdle blocks until there was no activity for IdleAfter; it returns false if ctx is done.
func (w *IdleWatcher) waitIdle(ctx context.Context) bool {
	timer := w.clock.NewTimer(IdleAfter)
	defer timer.Stop()
	for active := false; ; {
		select {
		case <-ctx.Done():
			return false
		case <-w.activity.C():
			active = true // checked when the timer fires, not for each notification
		case <-timer.C():
			if !active {
				return true
			}
			active = false
			timer.Reset(IdleAfter)
		}
	}
}
