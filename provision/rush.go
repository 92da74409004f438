package provision

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// longestYield is how long, at most, what nobody waits for gives way to claims. It is above the time that hundreds of
// claims at once take to be bound, also by a machine that has more to do.
const longestYield = 30 * time.Second

// rush knows whether claims wait that only writes to the API, ours or Kubernetes' own, keep from being Bound. What nobody
// waits for (removing an intent, telling of a success) gives way to them: all of it goes through the same API server.
// It is safe for concurrent use.
type rush struct {
	clock clock.WithTicker

	mu      sync.Mutex // guards all below
	waiting map[types.UID]struct{}
	// last is when a claim last began to wait. If that is long ago, the claims that wait are stuck and nothing helps them.
	last time.Time
	// over is closed when no claim waits any more, and made anew when one does.
	over chan struct{}
	// ended is set when the controller stops; what is left is done without giving way, until then.
	ended time.Time
}

func newRush(clk clock.WithTicker) *rush {
	over := make(chan struct{})
	close(over)
	return &rush{clock: clk, waiting: map[types.UID]struct{}{}, over: over}
}

// set notes whether the claim waits.
func (r *rush) set(uid types.UID, waits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, did := r.waiting[uid]
	switch {
	case waits && !did:
		if len(r.waiting) == 0 && r.ended.IsZero() {
			r.over = make(chan struct{})
		}
		r.waiting[uid], r.last = struct{}{}, r.clock.Now()
	case did && !waits:
		delete(r.waiting, uid)
		if len(r.waiting) == 0 && r.ended.IsZero() {
			close(r.over)
		}
	}
}

// end has nothing give way any more, and nothing be begun when grace is over.
func (r *rush) end(grace time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ended.IsZero() {
		return
	}
	r.ended = r.clock.Now().Add(grace)
	if len(r.waiting) > 0 {
		close(r.over)
	}
}

// giveWay returns when no claim waits, or since lies longestYield back. It returns false once the controller has stopped
// for so long that nothing may be begun.
func (r *rush) giveWay(since time.Time) bool {
	for {
		over, left, may := r.look(since)
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

// look returns how long to give way, at most, what may end it before, and whether anything may be begun.
func (r *rush) look(since time.Time) (over <-chan struct{}, left time.Duration, may bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock.Now()
	switch {
	case !r.ended.IsZero():
		return nil, 0, now.Before(r.ended)
	case len(r.waiting) == 0:
		return nil, 0, true
	}
	return r.over, longestYield - max(now.Sub(since), now.Sub(r.last)), true
}
