package controller

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/clock"
)

// Enqueuer is the controller's queue, as a Source uses it.
type Enqueuer[R comparable] interface {
	// Add reconciles the key because something changed.
	Add(key R)
	// AddBackground reconciles the key when no live key waits: it is part of an initial list or of a periodic resync, and
	// has most likely not changed.
	AddBackground(key R)
}

// Source enqueues the keys to reconcile. There are sources for informers (For, Owns, Watches), channels (Channel) and
// systems that must be polled (Poll); callers may implement others.
type Source[R comparable] interface {
	// Name returns what the source watches, for messages.
	Name() string
	// Run enqueues keys until ctx ends, then returns nil after all its goroutines have ended. It calls synced once it has
	// enqueued everything that existed at the start. An error ends the whole controller.
	Run(ctx context.Context, enqueuer Enqueuer[R], synced func()) error
}

// sourceRunner runs a Source and is its Enqueuer.
type sourceRunner[R comparable] struct {
	source Source[R]
	queue  *queue[R]
	synced chan struct{}
}

// Add implements Sink.
func (f *sourceRunner[R]) Add(key R) { f.queue.add(key, priorityLive) }

// AddBackground implements Sink.
func (f *sourceRunner[R]) AddBackground(key R) { f.queue.add(key, priorityBackground) }

func (f *sourceRunner[R]) run(ctx context.Context, controller string) error {
	done := false // Run is one goroutine, and calls synced itself
	err := f.source.Run(ctx, f, func() {
		if !done {
			done = true
			close(f.synced)
		}
	})
	if err != nil {
		return fmt.Errorf("run controller %q: source %s: %w", controller, f.source.Name(), err)
	}
	return nil
}

// Channel returns a Source of the keys that a channel delivers, for events of systems outside the cluster. The sender
// blocks only until the key is in the queue. Closing the channel ends the source, not the controller.
func Channel[R comparable](name string, keys <-chan R) Source[R] {
	return &channelSource[R]{name: name, keys: keys}
}

type channelSource[R comparable] struct {
	name string
	keys <-chan R
}

// Name implements Source.
func (s *channelSource[R]) Name() string { return s.name }

// Run implements Source.
func (s *channelSource[R]) Run(ctx context.Context, enqueuer Enqueuer[R], synced func()) error {
	synced()
	for {
		select {
		case <-ctx.Done():
			return nil
		case key, ok := <-s.keys:
			if !ok {
				<-ctx.Done()
				return nil
			}
			enqueuer.Add(key)
		}
	}
}

// PollConfig is the configuration of Poll.
type PollConfig struct {
	// Name is what is polled, for messages.
	Name string
	// Period is the time from the end of one poll to the next. It is required.
	Period time.Duration
	// Clock is the source of time. The default is the real clock.
	Clock clock.WithTicker
	// OnError, if set, is called with the error of a poll that failed; the next poll follows after Period.
	OnError func(error)
}

// Poll returns a Source that lists, at the start and then periodically, the keys to reconcile. It is for systems that have
// no notifications; others should use Channel or TypedController.Enqueue.
func Poll[R comparable](config PollConfig, list func(context.Context) ([]R, error)) Source[R] {
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	return &pollSource[R]{config: config, list: list}
}

type pollSource[R comparable] struct {
	config PollConfig
	list   func(context.Context) ([]R, error)
}

// Name implements Source.
func (s *pollSource[R]) Name() string { return s.config.Name }

// Run implements Source. The source counts as synced after the first poll, even if it failed, because a system that does
// not respond must not block the controller's other work.
func (s *pollSource[R]) Run(ctx context.Context, enqueuer Enqueuer[R], synced func()) error {
	if s.list == nil {
		return fmt.Errorf("poll %q: the function that lists is nil", s.config.Name)
	}
	if s.config.Period <= 0 {
		return fmt.Errorf("poll %q: PollConfig.Period is not positive: %s", s.config.Name, s.config.Period)
	}
	timer := s.config.Clock.NewTimer(s.config.Period)
	defer timer.Stop()
	for {
		keys, err := s.list(ctx)
		for _, key := range keys {
			enqueuer.AddBackground(key)
		}
		if err != nil && ctx.Err() == nil && s.config.OnError != nil {
			s.config.OnError(err)
		}
		synced()
		timer.Reset(s.config.Period)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C():
		}
	}
}
