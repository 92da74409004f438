// Package keyed runs operations, at most one at a time for each key, and delays an operation that failed by a growing
// backoff. The cost of an operation does not depend on how many keys there are.
package keyed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
)

const (
	// DefaultInitialBackoff is the backoff after the first failure; it doubles with each further one.
	DefaultInitialBackoff = 500 * time.Millisecond
	// DefaultMaxBackoff is the longest backoff.
	DefaultMaxBackoff = 2*time.Minute + 2*time.Second
)

// ErrAlreadyExists is the error of an operation that was not started because a conflicting one is pending.
var ErrAlreadyExists = errors.New("a conflicting operation is pending")

// BackoffError is the error of an operation that was not started because the last one of its kind failed too recently.
type BackoffError struct {
	// RetryAfter is the rest of the backoff at the time of the error.
	RetryAfter time.Duration
	// Failures is the number of failures in a row. Last is the error of the last one.
	Failures int
	Last     error
}

// Error implements error.
func (e *BackoffError) Error() string {
	return fmt.Sprintf("no retry permitted for %v after %d failures, the last: %v",
		e.RetryAfter.Round(time.Millisecond), e.Failures, e.Last)
}

// Unwrap returns the last failure.
func (e *BackoffError) Unwrap() error { return e.Last }

// Key is what an operation works on. Two keys conflict if they have the same object and either the same node or at
// least one of them has no node. A key without an object conflicts with nothing and has no backoff.
type Key struct {
	// Object is the unique name of the object, such as a volume.
	Object string
	// Node is set if operations on this object on other nodes may run at the same time.
	Node string
}

// String returns the key as logs and errors show it.
func (k Key) String() string {
	if k.Node == "" {
		return k.Object
	}
	return k.Object + " on " + k.Node
}

// Config holds the settings of an Executor.
type Config struct {
	// Limit is how many operations may run at once; further ones are pending until one ends. 0 means no limit.
	Limit int
	// InitialBackoff and MaxBackoff bound the backoff. 0 means DefaultInitialBackoff and DefaultMaxBackoff.
	InitialBackoff, MaxBackoff time.Duration
}

func (c Config) withDefaults() Config {
	if c.InitialBackoff <= 0 {
		c.InitialBackoff = DefaultInitialBackoff
	}
	if c.MaxBackoff <= 0 {
		c.MaxBackoff = DefaultMaxBackoff
	}
	return c
}

// Deps holds what an Executor uses. All of it is optional.
type Deps struct {
	// Clock defaults to the real clock.
	Clock clock.PassiveClock
	// Logger defaults to no log.
	Logger *slog.Logger
	// OnWait is called with the context of an operation that had to wait for its turn, before it runs.
	OnWait func(ctx context.Context, waited time.Duration)
}

func (d Deps) complete() Deps {
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.OnWait == nil {
		d.OnWait = func(context.Context, time.Duration) {}
	}
	return d
}

// Executor runs operations, one at a time for each key. It is safe for concurrent use. It owns the goroutines of
// Start: to stop it, cancel the contexts of the operations and call Wait.
type Executor struct {
	config  Config
	clock   clock.PassiveClock
	logger  *slog.Logger
	onWait  func(context.Context, time.Duration)
	slots   chan struct{} // nil without a limit
	running sync.WaitGroup

	mu       sync.Mutex // guards the two below
	pending  map[string]*objectOps
	failures failureLog
}

// objectOps holds the pending operations of one object: either whole, or some in byNode.
type objectOps struct {
	whole  *operation
	byNode map[string]*operation
}

// operation is a pending operation. done is closed when it has ended.
type operation struct {
	kind string
	done chan struct{}
}

// New returns an Executor without operations.
func New(deps Deps, config Config) *Executor {
	deps, config = deps.complete(), config.withDefaults()
	e := &Executor{
		config: config, clock: deps.Clock, logger: deps.Logger, onWait: deps.OnWait,
		pending: make(map[string]*objectOps), failures: newFailureLog(),
	}
	if config.Limit > 0 {
		e.slots = make(chan struct{}, config.Limit)
	}
	return e
}

// Start runs op in a new goroutine, unless a conflicting operation is pending (ErrAlreadyExists) or the last operation
// of this kind on this key failed too recently (*BackoffError). An operation of another kind ends that backoff. When op
// has ended and its key is free again, done is called with op's error, so done may start the next operation; done may
// be nil. A panic in op counts as an error of op. If ctx ends before op begins, op does not run and done gets ctx's
// error, which does not count as a failure.
func (e *Executor) Start(
	ctx context.Context, key Key, kind string, op func(context.Context) error, done func(error),
) error {
	operation, err := e.begin(key, kind)
	if err != nil {
		return fmt.Errorf("start %s of %s: %w", kind, key, err)
	}
	go func() {
		defer contain.Recover("keyed.Start", "")
		defer e.running.Done()
		err := e.run(ctx, key, operation, op)
		if done != nil {
			done(err)
		}
	}()
	return nil
}

// begin marks an operation of Start as pending, unless it has to wait.
func (e *Executor) begin(key Key, kind string) (*operation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.conflict(key) != nil {
		return nil, ErrAlreadyExists
	}
	if err := e.backoff(key, kind); err != nil {
		return nil, err
	}
	e.running.Add(1)
	return e.markPending(key, kind), nil
}

// Do runs op in the caller's goroutine and returns its error. It waits until no conflicting operation is pending, but
// does not wait for a backoff: the caller reads it with RetryAfter. If ctx ends first, Do returns ctx's error and op does
// not run.
func (e *Executor) Do(ctx context.Context, key Key, kind string, op func(context.Context) error) error {
	var waitingSince time.Time // zero while there was no conflict
	for {
		operation, other := e.beginOrConflict(key, kind)
		if other == nil {
			if !waitingSince.IsZero() {
				e.onWait(ctx, e.clock.Since(waitingSince))
			}
			return e.run(ctx, key, operation, op)
		}
		if waitingSince.IsZero() {
			waitingSince = e.clock.Now()
		}
		select {
		case <-other.done:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s of %s to end: %w", other.kind, key, ctx.Err())
		}
	}
}

// beginOrConflict marks an operation of Do as pending, or returns the one that it has to wait for.
func (e *Executor) beginOrConflict(key Key, kind string) (begun, other *operation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if other := e.conflict(key); other != nil {
		return nil, other
	}
	return e.markPending(key, kind), nil
}

// IsOperationPending reports whether an operation that conflicts with the key runs or waits for a slot.
func (e *Executor) IsOperationPending(key Key) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.conflict(key) != nil
}

// RetryAfter returns the rest of the backoff of this kind of operation on this key, 0 if there is none.
func (e *Executor) RetryAfter(key Key, kind string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.backoff(key, kind); err != nil {
		return err.RetryAfter
	}
	return 0
}

// ForgetFailures ends the backoff of the key and resets its count of failures.
func (e *Executor) ForgetFailures(key Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failures.drop(key)
}

// Wait blocks until all operations of Start, including their done functions, have ended.
func (e *Executor) Wait() { e.running.Wait() }

// run runs a pending operation and records its result.
func (e *Executor) run(ctx context.Context, key Key, operation *operation, op func(context.Context) error) error {
	began := false
	err := func() error {
		if e.slots != nil {
			waitingSince := e.clock.Now()
			select {
			case e.slots <- struct{}{}:
				defer func() { <-e.slots }()
			case <-ctx.Done():
			}
			e.onWait(ctx, e.clock.Since(waitingSince))
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		began = true
		return e.callOperation(ctx, key, operation.kind, op)
	}()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.clearPending(key, operation)
	switch {
	case key.Object == "" || !began:
	case err == nil:
		e.failures.drop(key)
	default:
		e.failures.add(key, operation.kind, err, e.clock.Now(), e.config.InitialBackoff, e.config.MaxBackoff)
	}
	return err
}

// callOperation calls op and turns a panic into an error.
func (e *Executor) callOperation(
	ctx context.Context, key Key, kind string, op func(context.Context) error,
) (err error) {
	return contain.Do(kind, key.String(), func() error { return op(ctx) })
}

// backoff returns the error that prevents the operation from starting now, or nil. The caller holds mu.
func (e *Executor) backoff(key Key, kind string) *BackoffError {
	now := e.clock.Now()
	e.failures.expire(now, 2*e.config.MaxBackoff)
	failure := e.failures.get(key)
	if failure == nil || failure.kind != kind {
		return nil
	}
	if wait := failure.at.Add(failure.delay).Sub(now); wait > 0 {
		return &BackoffError{RetryAfter: wait, Failures: failure.count, Last: failure.err}
	}
	return nil
}

// conflict returns a pending operation that conflicts with the key, or nil. The caller holds mu.
func (e *Executor) conflict(key Key) *operation {
	ops := e.pending[key.Object]
	if key.Object == "" || ops == nil {
		return nil
	}
	if ops.whole != nil {
		return ops.whole
	}
	if key.Node != "" {
		return ops.byNode[key.Node]
	}
	for _, operation := range ops.byNode {
		return operation
	}
	return nil
}

// markPending adds a pending operation. The caller holds mu and has checked that nothing conflicts.
func (e *Executor) markPending(key Key, kind string) *operation {
	added := &operation{kind: kind, done: make(chan struct{})}
	if key.Object == "" {
		return added
	}
	ops := e.pending[key.Object]
	if ops == nil {
		ops = &objectOps{}
		e.pending[key.Object] = ops
	}
	if key.Node == "" {
		ops.whole = added
		return added
	}
	if ops.byNode == nil {
		ops.byNode = make(map[string]*operation)
	}
	ops.byNode[key.Node] = added
	return added
}

// clearPending undoes markPending. The caller holds mu.
func (e *Executor) clearPending(key Key, operation *operation) {
	close(operation.done)
	if key.Object == "" {
		return
	}
	ops := e.pending[key.Object]
	if key.Node == "" {
		ops.whole = nil
	} else {
		delete(ops.byNode, key.Node)
	}
	if ops.whole == nil && len(ops.byNode) == 0 {
		delete(e.pending, key.Object)
	}
}
