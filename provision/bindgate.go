package provision

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// maxYield is how long, at most, what nobody waits for gives way to claims. It is above the time that hundreds of
// claims at once take to be bound, also by a machine that has more to do.
const maxYield = 30 * time.Second

// bindGate knows whether claims wait that only writes to the API, ours or Kubernetes' own, keep from being Bound. What nobody
// waits for (removing an intent, telling of a success) gives way to them: all of it goes through the same API server.
// It is safe for concurrent use.
type bindGate struct {
	clock clock.WithTicker

	mu      sync.Mutex // guards all below
	waiting map[types.UID]struct{}
	// last is when a claim last began to wait. If that is long ago, the claims that wait are stuck and nothing helps them.
	last time.Time
	// idle is closed when no claim waits any more, and made anew when one does.
	idle chan struct{}
	// deadline is set when the controller stops; what is left is done without giving way, until then.
	deadline time.Time
}

func newBindGate(clk clock.WithTicker) *bindGate {
	over := make(chan struct{})
	close(over)
	return &bindGate{clock: clk, waiting: map[types.UID]struct{}{}, idle: over}
}

// setWaiting notes whether the claim waits.
func (r *bindGate) setWaiting(uid types.UID, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, did := r.waiting[uid]
	switch {
	case waits && !did:
		if len(r.waiting) == 0 && r.deadline.IsZero() {
			r.idle = make(chan struct{})
		}
		r.waiting[uid], r.last = struct{}{}, r.clock.Now()
	case did && !waits:
		delete(r.waiting, uid)
		if len(r.waiting) == 0 && r.deadline.IsZero() {
			close(r.idle)
		}
	}
}

// shutdown has nothing give way any more, and nothing be begun when grace is over.
func (r *bindGate) shutdown(grace time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.deadline.IsZero() {
		return
	}
	r.deadline = r.clock.Now().Add(grace)
	if len(r.waiting) > 0 {
		close(r.idle)
	}
}

// yield returns when no claim waits, or since lies maxYield back. It returns false once the controller has stopped
// for so long that nothing may be begun.
func (r *bindGate) yield(since time.Time) bool {
	for {
		over, left, may := r.state(since)
		if left <= 0 {
			return may
		}
		timer := r.clock.NewTimer(left)
		select {
		case <-over:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// state returns how long to give way, at most, what may end it before, and whether anything may be begun.
func (r *bindGate) state(since time.Time) (over <-chan struct{}, left time.Duration, may bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	switch {
	case !r.deadline.IsZero():
		return nil, 0, now.Before(r.deadline)
	case len(r.waiting) == 0:
		return nil, 0, true
	}
	return r.idle, maxYield - max(now.Sub(since), now.Sub(r.last)), true
}
