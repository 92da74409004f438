package provision

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
)

// maxYield is how long a write yields at most. It is above the time in which hundreds of claims are bound, also on a
// machine that does other work.
const maxYield = 30 * time.Second

// maxEventYield is how long an event yields at most. Whoever watches the claim is to see within a second what goes on.
const maxEventYield = 500 * time.Millisecond

// bindGate orders writes to the API. Claims block on writes, the controller's own or Kubernetes' own, until they are
// Bound. Writes that no claim needs for that (removing an intent, events that are no Warnings) yield to them: all go
// through the same API server. It is safe for concurrent use.
type bindGate struct {
	clock clock.WithTicker

	mu      sync.Mutex // guards all below
	waiting map[types.UID]struct{}
	// last is when a claim last began to wait. Claims that have waited for maxYield since are stuck, and yielding does not
	// help them.
	last time.Time
	// idle is notified when no claim waits any more, and at shutdown.
	idle wakeup.Broadcast
	// deadline is set when the controller stops: no write yields any more, and none may begin after it.
	deadline time.Time
}

func newBindGate(clock clock.WithTicker) *bindGate {
	return &bindGate{clock: clock, waiting: map[types.UID]struct{}{}}
}

// setWaiting records whether the claim waits for writes that bind it.
func (g *bindGate) setWaiting(uid types.UID, waits bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, waited := g.waiting[uid]
	switch {
	case waits && !waited:
		g.waiting[uid], g.last = struct{}{}, g.clock.Now()
	case waited && !waits:
		delete(g.waiting, uid)
		if len(g.waiting) == 0 {
			g.idle.Notify()
		}
	}
}

// shutdown ends all yielding, and lets writes begin for grace.
func (g *bindGate) shutdown(grace time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.deadline.IsZero() {
		return
	}
	g.deadline = g.clock.Now().Add(grace)
	g.idle.Notify()
}

// yield blocks until no claim waits, but not for longer than maxYield after since, and not after ctx has ended. It returns
// whether the write may begin.
func (g *bindGate) yield(ctx context.Context, since time.Time) bool {
	return g.yieldFor(ctx, since, maxYield)
}

// yieldEvent is yield for an event, which is written in any case, and soon.
func (g *bindGate) yieldEvent(ctx context.Context, since time.Time) {
	g.yieldFor(ctx, since, maxEventYield)
}

func (g *bindGate) yieldFor(ctx context.Context, since time.Time, most time.Duration) (allowed bool) {
	wakeup.WaitWhile(ctx, g.clock, func() (idle <-chan struct{}, left time.Duration) {
		idle, left, allowed = g.state(since, most)
		return idle, left
	})
	return allowed
}

// state returns how long is left of most, the channel that is closed when that may end, and whether a write may begin.
func (g *bindGate) state(since time.Time, most time.Duration) (idle <-chan struct{}, left time.Duration, allowed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Now()
	switch {
	case !g.deadline.IsZero():
		return nil, 0, now.Before(g.deadline)
	case len(g.waiting) == 0:
		return nil, 0, true
	}
	return g.idle.Changed(), min(most-now.Sub(since), maxYield-now.Sub(g.last)), true
}
