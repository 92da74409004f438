package footprint

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// Rest is how long nothing may have happened for a process to count as at rest.
const Rest = 10 * time.Second

// Keeper calls a function once each time that work has come to rest. It is safe for concurrent use.
type Keeper struct {
	clock   clock.Clock
	release func()
	touched chan struct{}
}

// New makes a Keeper. release, usually Release, is called from the goroutine of Start. clk may be nil.
func New(clk clock.Clock, release func()) *Keeper {
	if clk == nil {
		clk = clock.RealClock{}
	}
	return &Keeper{clock: clk, release: release, touched: make(chan struct{}, 1)}
}

// Touch says that something happens. It does not block.
func (k *Keeper) Touch() {
	select {
	case k.touched <- struct{}{}:
	default:
	}
}

// Start works until ctx ends. The start itself counts as something that happens; later, while nobody calls Touch, there
// is no timer.
func (k *Keeper) Start(ctx context.Context) error {
	for {
		if !k.settle(ctx) {
			return nil
		}
		k.release()
		select {
		case <-ctx.Done():
			return nil
		case <-k.touched:
		}
	}
}

// settle waits until nothing has happened for Rest, and reports whether ctx goes on.
func (k *Keeper) settle(ctx context.Context) bool {
	timer := k.clock.NewTimer(Rest)
	defer timer.Stop()
	for again := false; ; {
		select {
		case <-ctx.Done():
			return false
		case <-k.touched:
			again = true // looked at when the timer fires: much may happen until then
		case <-timer.C():
			if !again {
				return true
			}
			again = false
			timer.Reset(Rest)
		}
	}
}
