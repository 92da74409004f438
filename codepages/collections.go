package codepages

import (
	"context"
	"runtime"
	"time"
)

// rareCollections is the time between two garbage collections from which the process counts as idle: Go collects every two minutes
// in a process that allocates next to nothing, and more often in any other.
const rareCollections = time.Minute

// NotifyCollections sends to the channel some time after each garbage collection, until ctx ends. A value that was not received yet
// also stands for the collections that follow.
func NotifyCollections(ctx context.Context, collected chan<- struct{}) {
	afterCollections(ctx, func() {
		select {
		case collected <- struct{}{}:
		default:
		}
	})
}

// ReleaseWhileIdle calls Release after each garbage collection of an idle process, until ctx ends: what an idle process does from
// time to time needs code, which the kernel maps with its neighbours. It has no timer and no goroutine. It calls failed, if Release
// fails, from the goroutine of Go's finalizers.
func ReleaseWhileIdle(ctx context.Context, failed func(error)) {
	last := time.Now()
	afterCollections(ctx, func() {
		now := time.Now()
		rare := now.Sub(last) >= rareCollections
		last = now
		if !rare {
			return
		}
		if err := Release(); err != nil {
			failed(err)
		}
	})
}

// collectionMarker is an object without references, so that each collection finalizes it.
type collectionMarker struct{ _ [16]byte }

// afterCollections calls fn some time after each collection, until ctx ends; no two calls are concurrent.
func afterCollections(ctx context.Context, fn func()) {
	runtime.SetFinalizer(&collectionMarker{}, func(*collectionMarker) {
		if ctx.Err() != nil {
			return
		}
		fn()
		afterCollections(ctx, fn)
	})
}
