package operationexecutor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/timeline"
)

const (
	// DefaultInitialBackoff is the pause after the first failure; it doubles with each further one.
	DefaultInitialBackoff = 500 * time.Millisecond
	// DefaultMaxBackoff is the longest pause.
	DefaultMaxBackoff = 2*time.Minute + 2*time.Second
)

// ErrAlreadyExists says that an operation was not started because one that conflicts with it is pending.
var ErrAlreadyExists = errors.New("an operation on this volume already exists")

// BackoffError says that an operation was not started because the last one of its kind failed too recently.
type BackoffError struct {
	// RetryAfter is how long to wait, measured when the error was made.
	RetryAfter time.Duration
	// Failures is how often the operation failed in a row; Last is the error of the last failure.
	Failures int
	Last     error
}

// Error implements error.
func (e *BackoffError) Error() string {
	return fmt.Sprintf("no retry permitted for %v after %d failures, the last: %v",
		e.RetryAfter.Round(time.Millisecond), e.Failures, e.Last)
}

// Unwrap gives the last failure.
func (e *BackoffError) Unwrap() error { return e.Last }

// Key says what an operation works on. Two keys conflict if they have the same volume and either the same node or at
// least one of them no node. An empty volume conflicts with nothing and has no backoff.
type Key struct {
	// Object is the volume's unique name.
	Object string
	// Node is set if operations on this volume on other nodes may run at the same time.
	Node string
}

// String is the key as it appears in logs and errors.
func (k Key) String() string {
	if k.Node == "" {
		return k.Object
	}
	return k.Object + " on " + k.Node
}

// Config is the values that a Keyed runs with. Zero fields mean the defaults.
type Config struct {
	// Limit is how many operations may run at once; further ones wait, and are pending meanwhile. 0 is no limit.
	Limit int
	// InitialBackoff and MaxBackoff bound the pause after failures.
	InitialBackoff, MaxBackoff time.Duration
}

// Deps is what a Keyed needs. Nil fields mean the defaults of the house: the real clock, no log.
type Deps struct {
	Clock  clock.PassiveClock
	Logger *slog.Logger
}

// Keyed runs operations, one at a time for each volume. It is safe for concurrent use. It owns the goroutines of
// Start; who owns the Keyed must end their contexts and call Wait.
type Keyed struct {
	initialBackoff, maxBackoff time.Duration
	clock                      clock.PassiveClock
	logger                     *slog.Logger
	slots                      chan struct{} // nil without a limit
	running                    sync.WaitGroup

	mu       sync.Mutex // guards the two below
	busy     map[string]*volumeOps
	failures failureLog
}

// volumeOps is the pending operations of one volume: either whole, or some in byNode.
type volumeOps struct {
	whole  *operation
	byNode map[string]*operation
}

// operation is one that is pending. done is closed when it is over.
type operation struct {
	kind string
	done chan struct{}
}

// NewKeyed makes a Keyed.
func NewKeyed(config Config, deps Deps) *Keyed {
	k := &Keyed{
		initialBackoff: config.InitialBackoff, maxBackoff: config.MaxBackoff,
		clock: deps.Clock, logger: deps.Logger,
		busy: make(map[string]*volumeOps),
	}
	if k.initialBackoff <= 0 {
		k.initialBackoff = DefaultInitialBackoff
	}
	if k.maxBackoff <= 0 {
		k.maxBackoff = DefaultMaxBackoff
	}
	if k.clock == nil {
		k.clock = clock.RealClock{}
	}
	if k.logger == nil {
		k.logger = slog.New(slog.DiscardHandler)
	}
	if config.Limit > 0 {
		k.slots = make(chan struct{}, config.Limit)
	}
	k.failures = newFailureLog()
	return k
}

// Start runs op in a goroutine of its own, unless a conflicting operation is pending (ErrAlreadyExists) or the last
// operation of this kind on this key failed too recently (*BackoffError). An operation of another kind ends that
// pause. When op is over and its key is free again, so that it may start the next one, done is called with op's
// error; done may be nil. A panic in op is an error of op. If ctx ends before op could begin, op does not run and
// done gets ctx's error, which is not counted as a failure.
func (k *Keyed) Start(
	ctx context.Context, key Key, kind string, op func(context.Context) error, done func(error),
) error {
	k.mu.Lock()
	if k.conflict(key) != nil {
		k.mu.Unlock()
		return fmt.Errorf("start %s of %s: %w", kind, key, ErrAlreadyExists)
	}
	if err := k.backoff(key, kind); err != nil {
		k.mu.Unlock()
		return fmt.Errorf("start %s of %s: %w", kind, key, err)
	}
	operation := k.markPending(key, kind)
	k.running.Add(1)
	k.mu.Unlock()
	go func() {
		defer k.running.Done()
		err := k.run(ctx, key, operation, op)
		if done != nil {
			done(err)
		}
	}()
	return nil
}

// Do runs op in the caller's goroutine and returns its error. It waits until no conflicting operation is pending,
// but not for a pause after failures: the caller asks Pause when to come back. If ctx ends first it returns ctx's
// error and op does not run.
func (k *Keyed) Do(ctx context.Context, key Key, kind string, op func(context.Context) error) error {
	requestedAt := time.Time{} // of the first conflict
	for {
		k.mu.Lock()
		other := k.conflict(key)
		if other == nil {
			operation := k.markPending(key, kind)
			k.mu.Unlock()
			k.recordWait(ctx, requestedAt)
			return k.run(ctx, key, operation, op)
		}
		k.mu.Unlock()
		if requestedAt.IsZero() {
			requestedAt = k.clock.Now()
		}
		select {
		case <-other.done:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s of %s to end: %w", other.kind, key, ctx.Err())
		}
	}
}

// IsOperationPending reports whether an operation that conflicts with the key is running or waits for a slot.
func (k *Keyed) IsOperationPending(key Key) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.conflict(key) != nil
}

// RetryAfter is how long an operation of this kind on this key has yet to wait after its failures. Zero means not at all.
func (k *Keyed) RetryAfter(key Key, kind string) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.backoff(key, kind); err != nil {
		return err.RetryAfter
	}
	return 0
}

// ForgetFailures drops what is remembered of failures of the key, so that the next operation begins afresh.
func (k *Keyed) ForgetFailures(key Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failures.drop(key)
}

// Wait returns when no operation of Start runs any more, callbacks included.
func (k *Keyed) Wait() { k.running.Wait() }

// run runs the operation, which has been claimed, and records how it went.
func (k *Keyed) run(ctx context.Context, key Key, operation *operation, op func(context.Context) error) error {
	began := false
	err := func() error {
		if k.slots != nil {
			requestedAt := k.clock.Now()
			select {
			case k.slots <- struct{}{}:
				defer func() { <-k.slots }()
			case <-ctx.Done():
			}
			k.recordWait(ctx, requestedAt)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		began = true
		return k.recoverPanic(ctx, key, operation.kind, op)
	}()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.clearPending(key, operation)
	switch {
	case key.Object == "" || !began:
	case err == nil:
		k.failures.drop(key)
	default:
		k.failures.add(key, operation.kind, err, k.clock.Now(), k.initialBackoff, k.maxBackoff)
	}
	return err
}

// recordWait notes in the stage that ctx works for how long the operation waited for its turn.
func (k *Keyed) recordWait(ctx context.Context, requestedAt time.Time) {
	if !requestedAt.IsZero() {
		timeline.Current(ctx).Waited(k.clock.Since(requestedAt))
	}
}

// recoverPanic turns a panic of op into an error.
func (k *Keyed) recoverPanic(ctx context.Context, key Key, kind string, op func(context.Context) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			k.logger.Error("operation panicked", "volume", key.String(), "operation", kind, "panic", p,
				"stack", string(debug.Stack()))
			err = fmt.Errorf("%s of %s panicked: %v", kind, key, p)
		}
	}()
	return op(ctx)
}

// backoff is the error that keeps the operation from starting now, or nil. The caller holds mu.
func (k *Keyed) backoff(key Key, kind string) *BackoffError {
	now := k.clock.Now()
	k.failures.expire(now, 2*k.maxBackoff)
	failure := k.failures.get(key)
	if failure == nil || failure.kind != kind {
		return nil
	}
	if wait := failure.at.Add(failure.delay).Sub(now); wait > 0 {
		return &BackoffError{RetryAfter: wait, Failures: failure.count, Last: failure.err}
	}
	return nil
}

// conflict is a pending operation that the key has to wait for, or nil. The caller holds mu.
func (k *Keyed) conflict(key Key) *operation {
	ops := k.busy[key.Object]
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

// markPending makes an operation pending. The caller holds mu and has seen that there is no conflict.
func (k *Keyed) markPending(key Key, kind string) *operation {
	claimed := &operation{kind: kind, done: make(chan struct{})}
	if key.Object == "" {
		return claimed
	}
	ops := k.busy[key.Object]
	if ops == nil {
		ops = &volumeOps{}
		k.busy[key.Object] = ops
	}
	if key.Node == "" {
		ops.whole = claimed
		return claimed
	}
	if ops.byNode == nil {
		ops.byNode = make(map[string]*operation)
	}
	ops.byNode[key.Node] = claimed
	return claimed
}

// clearPending ends what claim began. The caller holds mu.
func (k *Keyed) clearPending(key Key, operation *operation) {
	close(operation.done)
	if key.Object == "" {
		return
	}
	ops := k.busy[key.Object]
	if key.Node == "" {
		ops.whole = nil
	} else {
		delete(ops.byNode, key.Node)
	}
	if ops.whole == nil && len(ops.byNode) == 0 {
		delete(k.busy, key.Object)
	}
}
