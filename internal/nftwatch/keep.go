package nftwatch

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// checkPeriod is how often what causes no events is checked.
	checkPeriod = time.Minute
	// initialRetryDelay and maxRetryDelay bound the wait after a failure.
	initialRetryDelay = time.Second
	maxRetryDelay     = 5 * time.Minute
)

// Deps holds what Keep uses. Watch may be nil, which is that of this package.
type Deps struct {
	Watch  func(ctx context.Context, concerns func(Change) bool, started, changed func()) error
	Clock  clock.Clock
	Logger *slog.Logger
}

// Kept is what Keep keeps.
type Kept struct {
	// Name says in the log what it is: "the kubelet's chains".
	Name string
	// Concerns reports whether a change concerns it.
	Concerns func(Change) bool
	// Ensure makes what is missing. What it changes itself causes events, too, so it must change nothing when nothing is missing.
	Ensure func(ctx context.Context) error
	// HasNoEvents says that some of it causes no events when it is changed.
	HasNoEvents bool
}

// Keep calls kept.Ensure at once, after each change that concerns it, and again after a failure, until ctx ends.
func Keep(ctx context.Context, deps Deps, kept Kept) error {
	if deps.Watch == nil {
		deps.Watch = Watch
	}
	changed := wakeup.NewSignal()
	watchCtx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer contain.Recover("nftwatch.Keep", kept.Name)
		defer changed.Notify() // after it has ended, so that the next pass begins to check periodically
		defer close(ended)
		// What was changed before it watches is ensured again.
		if err := deps.Watch(watchCtx, kept.Concerns, changed.Notify, changed.Notify); err != nil && watchCtx.Err() == nil {
			deps.Logger.Warn("cannot watch the packet filter; checking it periodically", "for", kept.Name, "error", err)
		}
	}()
	defer func() { stop(); <-ended }()
	retry := time.Duration(0)
	for {
		wait := time.Duration(0)
		if err := kept.Ensure(ctx); err != nil && ctx.Err() == nil {
			retry = min(max(2*retry, initialRetryDelay), maxRetryDelay)
			wait = retry
			deps.Logger.Warn("failed to make rules in the packet filter; retrying", "what", kept.Name, "error", err, "retry", retry)
		} else {
			retry = 0
			if kept.HasNoEvents || hasEnded(ended) {
				wait = checkPeriod
			}
		}
		if !sleep(ctx, deps.Clock, changed, wait) {
			return nil
		}
	}
}

func hasEnded(ended <-chan struct{}) bool {
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

// sleep waits for a change or, if wait is not zero, for that time. It returns false when ctx has ended.
func sleep(ctx context.Context, clock clock.Clock, changed wakeup.Signal, wait time.Duration) bool {
	var due <-chan time.Time
	if wait > 0 {
		timer := clock.NewTimer(wait)
		defer timer.Stop()
		due = timer.C()
	}
	select {
	case <-ctx.Done():
		return false
	case <-changed.C():
	case <-due:
	}
	return true
}
