// Package startonce refuses a second start of what can be started once.
package startonce

import (
	"fmt"
	"sync/atomic"
)

// Guard notes that something was started. The zero Guard is ready. What has informers of its own needs one: the end of a second start
// would wait for the informers of the first.
type Guard struct{ started atomic.Bool }

// Begin returns nil the first time, and then an error that names what was started.
func (g *Guard) Begin(what string) error {
	if g.started.CompareAndSwap(false, true) {
		return nil
	}
	return fmt.Errorf("start %s: it was started before; create a new one", what)
}

// Begun reports whether Begin was called.
func (g *Guard) Begun() bool { return g.started.Load() }
