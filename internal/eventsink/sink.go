package eventsink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// DefaultDrainTimeout bounds the writing of the events that are left when Start ends.
	DefaultDrainTimeout = 2 * time.Second
	// DefaultMaxQueued is how many events each queue holds.
	DefaultMaxQueued = 10_000
	// DefaultQuiet is the pause after which Config.Debounce applies again. It is above the time in which an
	// EventBroadcaster passes on the next event.
	DefaultQuiet = 20 * time.Millisecond

	// writeTimeout bounds one request.
	writeTimeout = 30 * time.Second
	// maxTries and retryPause pace an event that does not reach the API server.
	maxTries   = 12
	retryPause = 10 * time.Second
)

// Deps are what a Sink works with. Client is required.
type Deps struct {
	// Client writes events of all namespaces.
	Client typedcorev1.EventsGetter
	// Yield blocks while an event that is no Warning has to wait for more urgent writes: not for long after since, the time
	// of the event, and not after ctx has ended. Nil: no event yields.
	Yield func(ctx context.Context, since time.Time)
	// Late are the events that wait for longer. Nil: none.
	Late *Late
	// Logger; nil discards.
	Logger *slog.Logger
	// Clock; nil is the system's.
	Clock clock.Clock
}

// Late describes those events that are no Warnings, and that no person or program waits for. They delay no other event.
type Late struct {
	// Is returns whether an event is one of them. It must not change it.
	Is func(event *corev1.Event) bool
	// Yield is for them what Deps.Yield is for others.
	Yield func(ctx context.Context, since time.Time)
}

// Config is how a Sink works. The zero value is valid.
type Config struct {
	// Debounce is how long the first event after a pause waits; 0: not at all.
	Debounce time.Duration
	// Quiet is the length of that pause. Default DefaultQuiet.
	Quiet time.Duration
	// DrainTimeout bounds the writing of the events that are left when the context of Start has ended. Default
	// DefaultDrainTimeout.
	DrainTimeout time.Duration
	// MaxQueued is how many events of each kind wait before further ones are dropped. Default DefaultMaxQueued.
	MaxQueued int
	// QPS is how many requests are sent per second in the long run, and Burst how many at once; no limit if QPS is 0.
	QPS   float32
	Burst int
}

func (c Config) withDefaults() Config {
	if c.Quiet == 0 {
		c.Quiet = DefaultQuiet
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	if c.MaxQueued == 0 {
		c.MaxQueued = DefaultMaxQueued
	}
	return c
}

// Sink is a record.EventSink that writes in the background. Its methods never block and never fail. It is safe for
// concurrent use.
type Sink struct {
	deps                   Deps
	config                 Config
	warnings, others, late *queue
	// limiter paces the requests; nil does not.
	limiter flowcontrol.RateLimiter
}

var _ record.EventSink = (*Sink)(nil)

// New returns a Sink that queues events. Start writes them.
func New(deps Deps, config Config) (*Sink, error) {
	if deps.Client == nil {
		return nil, errors.New("eventsink: Deps.Client is required")
	}
	if deps.Late != nil && (deps.Late.Is == nil || deps.Late.Yield == nil) {
		return nil, errors.New("eventsink: Deps.Late needs Is and Yield")
	}
	if config.QPS < 0 || config.Burst < 0 || config.Debounce < 0 || config.Quiet < 0 || config.DrainTimeout < 0 || config.MaxQueued < 0 {
		return nil, fmt.Errorf("eventsink: negative value in Config %+v", config)
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	config = config.withDefaults()
	s := &Sink{deps: deps, config: config,
		warnings: newQueue(config.MaxQueued), others: newQueue(config.MaxQueued), late: newQueue(config.MaxQueued)}
	if config.QPS > 0 {
		s.limiter = flowcontrol.NewTokenBucketRateLimiter(config.QPS, max(config.Burst, 1))
	}
	return s, nil
}

// Create implements record.EventSink.
func (s *Sink) Create(event *corev1.Event) (*corev1.Event, error) {
	return s.add(write{event: event, verb: create})
}

// Update implements record.EventSink.
func (s *Sink) Update(event *corev1.Event) (*corev1.Event, error) {
	return s.add(write{event: event, verb: update})
}

// Patch implements record.EventSink.
func (s *Sink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	return s.add(write{event: event, verb: patch, data: data})
}

func (s *Sink) add(w write) (*corev1.Event, error) {
	queue := s.others
	switch {
	case w.event.Type == corev1.EventTypeWarning:
		queue = s.warnings
	case s.deps.Late != nil && s.deps.Late.Is(w.event):
		queue = s.late
	}
	queue.add(w)
	return w.event, nil
}

// Start writes events until ctx ends, then those that are left, for DrainTimeout at most. Shut the EventBroadcaster down
// before ctx ends: what it passes on later is not written.
func (s *Sink) Start(ctx context.Context) error {
	writing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var writers sync.WaitGroup
	writers.Go(contain.Loop(writing, "eventsink.run", "warnings", func(context.Context) { s.run(writing, ctx, s.warnings, nil) }))
	writers.Go(contain.Loop(writing, "eventsink.run", "others", func(context.Context) { s.run(writing, ctx, s.others, s.deps.Yield) }))
	if late := s.deps.Late; late != nil {
		writers.Go(contain.Loop(writing, "eventsink.run", "late", func(context.Context) { s.run(writing, ctx, s.late, late.Yield) }))
	}
	<-ctx.Done()
	timer := time.AfterFunc(s.config.DrainTimeout, cancel)
	defer timer.Stop()
	writers.Wait()
	return nil
}

// run writes the events of the queue until stopping has ended and the queue is empty, or until ctx has ended.
func (s *Sink) run(
	ctx, stopping context.Context, queue *queue, yield func(ctx context.Context, since time.Time),
) {
	var last time.Time
	for {
		ended := stopping.Err() != nil
		writes, dropped := queue.take()
		if dropped > 0 {
			s.deps.Logger.Warn("too many events are queued; dropped some", "dropped", dropped)
		}
		if len(writes) == 0 {
			if ended {
				return
			}
			select {
			case <-queue.more.C():
			case <-stopping.Done():
			}
			continue
		}
		if s.deps.Clock.Since(last) >= s.config.Quiet {
			wakeup.Sleep(stopping, s.deps.Clock, s.config.Debounce)
		}
		for i, w := range writes {
			if yield != nil {
				yield(stopping, w.event.LastTimestamp.Time)
			}
			if !s.write(ctx, w) {
				s.deps.Logger.Warn("stopped before all events were written", "left", len(writes)-i)
				return
			}
		}
		last = s.deps.Clock.Now()
	}
}

// write writes one event, and tries again if it does not reach the API server. It returns false if ctx ended before.
func (s *Sink) write(ctx context.Context, w write) bool {
	for tries := 1; ; tries++ {
		if s.limiter != nil && s.limiter.Wait(ctx) != nil {
			return false
		}
		err := s.send(ctx, w)
		if err == nil || isMoot(err) {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if isPermanent(err) || tries == maxTries {
			s.deps.Logger.Warn("failed to write event", "event", w.event.Message, "tries", tries, "error", err)
			return true
		}
		pause := retryPause
		if tries == 1 {
			pause = rand.N(retryPause) // spreads the clients of an API server that was away
		}
		if !wakeup.Sleep(ctx, s.deps.Clock, pause) {
			return false
		}
	}
}

// send makes one request. An event that repeats one which does not exist any more is created.
func (s *Sink) send(ctx context.Context, w write) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	api := s.deps.Client.Events("")
	switch w.verb {
	case patch:
		_, err := api.PatchWithEventNamespaceWithContext(ctx, w.event, w.data)
		if !apierrors.IsNotFound(err) {
			return err
		}
	case update:
		_, err := api.UpdateWithEventNamespaceWithContext(ctx, w.event)
		return err
	}
	event := *w.event
	event.ResourceVersion = ""
	_, err := api.CreateWithEventNamespaceWithContext(ctx, &event)
	return err
}

// isMoot returns whether the event exists already, or whether its namespace is being deleted.
func isMoot(err error) bool {
	return apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// isPermanent returns whether the same request would fail in the same way again.
func isPermanent(err error) bool {
	var status *apierrors.StatusError
	var construction *rest.RequestConstructionError
	return errors.As(err, &status) || errors.As(err, &construction)
}
