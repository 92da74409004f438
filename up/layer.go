package up

import (
	"context"
	"sync"
)

// layer is a group of parts that run and stop together. Layers stop one after the other, the uppermost first,
// so that each part stops while all it leans on still runs. That is why a layer does not end with the context
// that it was made from, only with stop.
type layer struct {
	ctx    context.Context
	cancel context.CancelFunc
	parts  sync.WaitGroup
}

func newLayer(ctx context.Context) *layer {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &layer{ctx: inner, cancel: cancel}
}

// start runs a part of the layer in a goroutine that stop waits for.
func (l *layer) start(run func(ctx context.Context)) {
	l.parts.Go(func() { run(l.ctx) })
}

// stop ends all parts of the layer and waits for them.
func (l *layer) stop() {
	l.cancel()
	l.parts.Wait()
}
