package up

import (
	"context"
	"sync"
)

// group is a group of parts that run and stop together. Layers stop one after the other, the uppermost first,
// so that each part stops while all it leans on still runs. That is why a layer does not end with the context
// that it was made from, only with stop.
type group struct {
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func newGroup(ctx context.Context) *group {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &group{ctx: inner, cancel: cancel}
}

// start runs a part of the layer in a goroutine that stop waits for.
func (l *group) start(run func(ctx context.Context)) {
	l.running.Go(func() { run(l.ctx) })
}

// stop ends all parts of the layer and waits for them.
func (l *group) stop() {
	l.cancel()
	l.running.Wait()
}
