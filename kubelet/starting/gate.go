package starting

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
)

// MaxYield is how long a write yields at most. It is about the time in which a hundred Pods start on two processors, and few people
// notice it in what they read of Pods that start with so many others.
const MaxYield = 5 * time.Second

// Gate knows how many sandboxes and containers are being started. It is safe for concurrent use.
type Gate struct {
	clock clock.WithTicker

	mu     sync.Mutex // guards all below
	starts int
	idle   wakeup.Broadcast // notified when nothing is being started any more
}

// NewGate returns a Gate with the clock.
func NewGate(clock clock.WithTicker) *Gate { return &Gate{clock: clock} }

// begin counts a start, until end.
func (g *Gate) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.starts++
}

func (g *Gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.starts--; g.starts == 0 {
		g.idle.Notify()
	}
}

// Yields reports whether a write that could be made since that time is to wait longer.
func (g *Gate) Yields(since time.Time) bool {
	_, left := g.state(since)
	return left > 0
}

// Yield blocks while something is being started, but not for longer than MaxYield after since, and not after ctx has ended.
func (g *Gate) Yield(ctx context.Context, since time.Time) {
	wakeup.WaitWhile(ctx, g.clock, func() (<-chan struct{}, time.Duration) { return g.state(since) })
}

// state returns how long is left of MaxYield, and the channel that is closed when that may end.
func (g *Gate) state(since time.Time) (idle <-chan struct{}, left time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.starts == 0 {
		return nil, 0
	}
	return g.idle.Changed(), MaxYield - g.clock.Since(since)
}
