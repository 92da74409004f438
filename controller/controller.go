package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/startonce"
	"github.com/berth-dev/berth/reconcile"
)

// Controller runs a Reconciler of named objects.
type Controller = TypedController[reconcile.Request]

// TypedController runs a TypedReconciler. Its methods are safe for concurrent use, except that Watch must be called before
// Start.
type TypedController[R comparable] struct {
	reconciler reconcile.TypedReconciler[R]
	logger     *slog.Logger
	deps       Deps
	config     Config
	queue      *queue[R]
	metrics    *metrics
	sources    []*sourceRunner[R]
	once       startonce.Guard
	ready      atomic.Bool
}

// New returns a controller of named objects. Watch adds its sources, Start runs it.
func New(reconciler reconcile.Reconciler, deps Deps, config Config) (*Controller, error) {
	return NewTyped[reconcile.Request](reconciler, deps, config)
}

// NewTyped returns a controller for any comparable type of request.
func NewTyped[R comparable](reconciler reconcile.TypedReconciler[R], deps Deps, config Config) (*TypedController[R], error) {
	config, err := config.complete()
	if err != nil {
		return nil, err
	}
	if reconciler == nil {
		return nil, fmt.Errorf("controller %q: a reconciler is required", config.Name)
	}
	deps = deps.complete()
	c := &TypedController[R]{
		reconciler: reconciler, config: config, deps: deps,
		logger: deps.Logger.With("controller", config.Name),
		queue:  newQueue[R](deps.Clock, config.BackoffMin, config.BackoffMax),
	}
	c.metrics = newMetrics(config.Name, c.queue.stats)
	return c, nil
}

// Watch adds a source of keys, which runs from Start on. It must be called before Start: later it only logs an error.
func (c *TypedController[R]) Watch(source Source[R]) {
	if c.once.Begun() {
		name := "nil"
		if source != nil {
			name = source.Name()
		}
		c.logger.Error("source is not watched: Watch was called after Start", "source", name)
		return
	}
	c.sources = append(c.sources, &sourceRunner[R]{source: source, queue: c.queue, synced: make(chan struct{})})
}

// Enqueue reconciles the keys as soon as a worker is free, as after a live event. It is for events that no Source has,
// such as those of a webhook. It may be called before Start.
func (c *TypedController[R]) Enqueue(keys ...R) {
	for _, key := range keys {
		c.queue.add(key, priorityLive)
	}
}

// EnqueueAfter reconciles the key after d. Of several pending requests for one key, the earliest counts. A run before that
// time does not replace it, as it does for Result.RequeueAfter.
func (c *TypedController[R]) EnqueueAfter(key R, d time.Duration) { c.queue.addAfter(key, d) }

// RetryFailed reconciles all keys that wait for the delay after a failure as soon as workers are free, for instance because
// what they called is back. A key that is being reconciled is reconciled once more: it may have failed already.
func (c *TypedController[R]) RetryFailed() { c.queue.retryFailed() }

// Start runs the sources, waits until each has delivered what exists, then runs the workers until ctx ends or a source
// fails. It waits for active runs and drops the waiting keys, since a new start lists all objects again. It returns nil
// if ctx ended, after every goroutine that it started has ended. A controller can be started once.
func (c *TypedController[R]) Start(ctx context.Context) error {
	if err := c.once.Begin(fmt.Sprintf("controller %q", c.config.Name)); err != nil {
		return err
	}
	for _, f := range c.sources {
		if f.source == nil {
			return fmt.Errorf("start controller %q: Watch was called with nil", c.config.Name)
		}
	}
	if c.deps.Registerer != nil {
		if err := c.deps.Registerer.Register(c.metrics); err != nil {
			return fmt.Errorf("start controller %q: register metrics: %w", c.config.Name, err)
		}
		defer c.deps.Registerer.Unregister(c.metrics)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(contain.Func("controller.Start", "", func() error {
		c.queue.runTimer(groupCtx)
		return nil
	}))
	group.Go(contain.Func("controller.Start", "", func() error {
		<-groupCtx.Done()
		c.queue.close()
		return nil
	}))
	for _, f := range c.sources {
		group.Go(contain.Func("controller.Start", "", func() error {
			err := f.run(groupCtx, c.config.Name)
			if ctx.Err() != nil {
				return nil // groupCtx ends after ctx, and what the source watches may have ended in between
			}
			return err
		}))
	}
	group.Go(contain.Func("controller.Start", "", func() error {
		if c.waitSynced(groupCtx) {
			c.logger.Debug("sources synced; starting workers", "workers", c.config.Workers)
			c.ready.Store(true)
			for range c.config.Workers {
				group.Go(contain.Func("controller.Start", "", func() error {
					c.runWorker(groupCtx)
					return nil
				}))
			}
		}
		return nil
	}))
	err := group.Wait()
	c.ready.Store(false)
	return err
}

func (c *TypedController[R]) waitSynced(ctx context.Context) bool {
	for _, f := range c.sources {
		select {
		case <-ctx.Done():
			return false
		case <-f.synced:
		}
	}
	return true
}

// Ready returns nil while the workers run, which is when every source has delivered what existed at the start.
func (c *TypedController[R]) Ready() error {
	if c.ready.Load() {
		return nil
	}
	for _, f := range c.sources {
		select {
		case <-f.synced:
		default:
			if c.once.Begun() {
				return fmt.Errorf("controller %q is not ready: waiting for the initial list of %s",
					c.config.Name, f.source.Name())
			}
		}
	}
	return fmt.Errorf("controller %q is not ready: it is not running", c.config.Name)
}

// Healthy returns an error while a single run takes longer than Config.StuckAfter.
func (c *TypedController[R]) Healthy() error {
	if longest := c.queue.stats().longest; longest > c.config.StuckAfter {
		return fmt.Errorf("controller %q is unhealthy: a run has taken %s", c.config.Name, longest.Round(time.Second))
	}
	return nil
}

// runWorker reconciles keys until the queue is closed.
func (c *TypedController[R]) runWorker(ctx context.Context) {
	for {
		key, waited, ok := c.queue.get()
		if !ok {
			return
		}
		result, err := c.reconcileOne(ctx, key, waited)
		what, label := c.classify(ctx, key, result, err)
		ran := c.queue.done(key, what)
		c.metrics.observe(label, waited, ran)
	}
}

// classify returns what the queue does with a key after a run, as package reconcile documents it, and the metric's label.
func (c *TypedController[R]) classify(ctx context.Context, key R, result reconcile.Result, err error) (outcome, resultLabel) {
	var panicked *PanicError
	switch {
	case errors.As(err, &panicked):
		c.logger.Error("reconciler panicked; retrying", "key", key, "panic", panicked.Value, "stack", string(panicked.Stack))
		return outcome{rateLimited: true}, resultPanic
	case reconcile.IsTerminal(err):
		c.logger.Error("reconcile failed with a terminal error; not retrying", "key", key, "error", err)
		return outcome{}, resultTerminal
	case err != nil && ctx.Err() != nil:
		c.logger.Debug("reconcile was interrupted by the shutdown", "key", key, "error", err)
		return outcome{rateLimited: true}, resultError
	case err != nil:
		c.logger.Error("reconcile failed; retrying", "key", key, "error", err)
		return outcome{rateLimited: true}, resultError
	case result.RequeueAfter > 0:
		return outcome{requeueAfter: result.RequeueAfter}, resultAfter
	case result.Requeue:
		return outcome{rateLimited: true}, resultRequeue
	}
	return outcome{}, resultSuccess
}

// errTimeout distinguishes the end of Config.Timeout from the end of the caller's context.
var errTimeout = errors.New("the controller's timeout for one run has expired")

// minReportedWait is the shortest wait that QueueWait reports: a context with a value costs an allocation per run.
const minReportedWait = time.Millisecond

type queueWaitKey struct{}

// QueueWait returns how long the key of the current run was ready before a worker took it, so that a Reconciler can record
// it in its traces. It is 0 for less than a millisecond, and outside of a run.
func QueueWait(ctx context.Context) time.Duration {
	waited, _ := ctx.Value(queueWaitKey{}).(time.Duration)
	return waited
}

// PanicError is the error that replaces a panic of the Reconciler.
type PanicError struct {
	// Value is what the Reconciler panicked with.
	Value any
	// Stack is the stack of the panicking goroutine, as text.
	Stack []byte
}

// Error returns the value as text, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("reconciler panicked: %v", e.Value) }

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// reconcileOne runs the Reconciler once, for a key that waited that long. It returns a panic as an error.
func (c *TypedController[R]) reconcileOne(ctx context.Context, key R, waited time.Duration) (result reconcile.Result, err error) {
	defer func() {
		if value := recover(); value != nil {
			recorded := contain.Record("controller."+c.config.Name, fmt.Sprint(key), value)
			result, err = reconcile.Result{}, &PanicError{Value: value, Stack: recorded.Stack}
		}
	}()
	if waited >= minReportedWait {
		ctx = context.WithValue(ctx, queueWaitKey{}, waited)
	}
	if c.config.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.config.Timeout, errTimeout)
		defer cancel()
	}
	return c.reconciler.Reconcile(ctx, key)
}
