package csidriver

import (
	"context"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/contain"
)

// inflight runs the operations of calls, one at a time for each volume or snapshot. An operation continues when its caller
// gives up: completing it is safer than interrupting it.
type inflight struct {
	mu sync.Mutex
	// busy has a channel for each id with an operation; it is closed when the operation ends.
	busy map[string]chan struct{}
	// ctx is that of Start, nil before it.
	ctx     context.Context
	running sync.WaitGroup
}

func newInflight() *inflight {
	return &inflight{busy: map[string]chan struct{}{}}
}

func (w *inflight) start(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ctx = ctx
}

// stop rejects new operations and waits for those in flight.
func (w *inflight) stop() {
	w.mu.Lock()
	w.ctx = nil
	w.mu.Unlock()
	w.running.Wait()
}

// run acquires all ids, runs job, and returns its result. If the caller's ctx is done first, it returns Aborted: the job
// continues, or never runs if the ids were not acquired by then. The job's context is that of Start.
func run[T any](ctx context.Context, w *inflight, ids []string, job func(context.Context) (T, error)) (T, error) {
	var none T
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	own, err := w.acquire(ctx, ids)
	if err != nil {
		return none, err
	}
	var result T
	done := make(chan struct{})
	go func() {
		defer w.running.Done()
		defer w.release(ids)
		err = contain.Do("csidriver.run", strings.Join(ids, ","), func() (err error) {
			result, err = job(own)
			return err
		})
		close(done)
	}()
	select {
	case <-done:
		return result, err
	case <-ctx.Done():
		return none, status.Errorf(codes.Aborted, "the operation for %q is still under way", ids)
	}
}

// tryAcquire acquires all ids, or returns a channel that is closed when one of them is free again.
func (w *inflight) tryAcquire(ids []string) (own context.Context, wait <-chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx == nil || w.ctx.Err() != nil {
		return nil, nil, status.Error(codes.Unavailable, "the driver is not running")
	}
	for _, id := range ids {
		if busy := w.busy[id]; busy != nil {
			return nil, busy, nil
		}
	}
	for _, id := range ids {
		w.busy[id] = make(chan struct{})
	}
	w.running.Add(1)
	return w.ctx, nil, nil
}

// acquire acquires all ids at once, so that operations cannot deadlock.
func (w *inflight) acquire(ctx context.Context, ids []string) (context.Context, error) {
	for {
		own, wait, err := w.tryAcquire(ids)
		if wait == nil {
			return own, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, status.Errorf(codes.Aborted, "an operation for %q is still under way", ids)
		}
	}
}

func (w *inflight) release(ids []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		close(w.busy[id])
		delete(w.busy, id)
	}
}
