package controller

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/clock"
)

// Enqueuer takes keys from a Source.
type Enqueuer[R comparable] interface {
	// Add has the key reconciled because something happened.
	Add(key R)
	// AddBackground has the key reconciled when there is nothing more urgent: it is part of an initial list or of a
	// periodic pass, and most likely nothing happened to it.
	AddBackground(key R)
}

// Source finds out which keys to reconcile. Implementations exist for informers (For, Owns, Watches), channels
// (Channel) and systems that must be asked (Poll); a caller may bring its own.
type Source[R comparable] interface {
	// Name says what the source watches, for messages.
	Name() string
	// Run gives keys to sink until ctx ends, then returns nil; goroutines it begins end first. It calls synced once
	// everything that existed at the start is given. An error ends the whole controller.
	Run(ctx context.Context, enqueuer Enqueuer[R], synced func()) error
}

// sourceRunner connects a Source to the queue.
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

// Channel makes a Source of the keys that come through a channel, for events of systems outside the cluster. The
// sender is held up only for as long as it takes to put a key into the queue. Closing the channel ends the source,
// not the controller.
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

// PollConfig is how Poll asks a system that cannot tell of its changes.
type PollConfig struct {
	// Name says what is asked, for messages.
	Name string
	// Period is the time from the end of one question to the next. It is required.
	Period time.Duration
	// Clock is the source of time. The default is the real clock.
	Clock clock.WithTicker
	// OnError, if given, hears of a question that failed; the next follows after Period.
	OnError func(error)
}

// Poll makes a Source that asks another system, at the start and then periodically, which keys to look at. It is
// meant for systems that have no way of telling; whatever can notify should use Channel or Typed.Enqueue.
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

// Run implements Source. The source counts as synced after the first question, failed or not, because a system that
// does not answer must not keep the controller from its other work.
func (s *pollSource[R]) Run(ctx context.Context, enqueuer Enqueuer[R], synced func()) error {
	if s.config.Period <= 0 {
		return fmt.Errorf("poll %q: field Period is not positive: %s", s.config.Name, s.config.Period)
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
