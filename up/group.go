package up

import (
	"context"
	"sync"

	"github.com/berth-dev/berth/internal/contain"
)

// group is a set of components that run and stop together. Groups stop in reverse order of their dependencies, so that
// each component stops while everything that it depends on still runs. That is why a group does not end with the context
// that it was created from, only with stop.
type group struct {
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func newGroup(ctx context.Context) *group {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &group{ctx: inner, cancel: cancel}
}

// start runs a component of the group in a goroutine that stop waits for.
func (l *group) start(run func(ctx context.Context)) {
	l.running.Go(contain.Guard("up.start", "", func() { run(l.ctx) }))
}

// stop stops all components of the group and waits for them.
func (l *group) stop() {
	l.cancel()
	l.running.Wait()
}
