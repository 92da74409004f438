package provision

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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

const (
	// maxQueuedEvents is how many events of each kind wait to be written before further ones are dropped.
	maxQueuedEvents = 10_000
	// eventTries and eventPause are what a write that does not reach the API server is tried again with.
	eventTries = 12
	eventPause = 10 * time.Second
	// eventDrainTimeout bounds the writing of events that are left when the controller ends.
	eventDrainTimeout = 2 * time.Second
)

// startEvents returns the recorder that events go to, and a function that writes what it can of those that are left and
// ends it. Events are written in the background: Warnings at once, the others when no claim waits.
func (ctrl *ProvisionController) startEvents(ctx context.Context, rush *bindGate) (record.EventRecorder, func()) {
	if r := ctrl.settings.recorder; r != nil {
		return r, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &eventWriter{
		client: ctrl.client, clock: ctrl.settings.clock, rush: rush, logger: ctrl.settings.logger,
		correlator: record.NewEventCorrelator(ctrl.settings.clock),
	}
	var lanes sync.WaitGroup
	for _, lane := range []*eventQueue{&w.warnings, &w.others} {
		lane.more = make(chan struct{}, 1)
		lanes.Go(func() { w.run(ctx, lane, lane == &w.others) })
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartEventWatcher(w.add)
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{
		Component: ctrl.provisionerName + "_" + ctrl.identity,
	})
	return recorder, func() {
		broadcaster.Shutdown()
		rush.shutdown(eventDrainTimeout)
		w.warnings.end()
		w.others.end()
		timer := time.AfterFunc(eventDrainTimeout, cancel)
		lanes.Wait()
		timer.Stop()
		cancel()
	}
}

// eventWriter writes events to the API. client-go's own writer knows one queue, of a thousand, and no hurry.
type eventWriter struct {
	client     kubernetes.Interface
	clock      clock.WithTicker
	rush       *bindGate
	logger     *slog.Logger
	correlator *record.EventCorrelator

	warnings, others eventQueue
}

// eventQueue is a queue of events in the order of their recording.
type eventQueue struct {
	// more has an item when the queue has, or has ended.
	more chan struct{}

	mu      sync.Mutex // guards all below
	events  []*corev1.Event
	dropped int
	ended   bool
}

// add never blocks: the broadcaster drops what its watchers do not take.
func (w *eventWriter) add(event *corev1.Event) {
	if event.Type == corev1.EventTypeWarning {
		w.warnings.add(event)
		return
	}
	w.others.add(event)
}

func (l *eventQueue) add(event *corev1.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.events) >= maxQueuedEvents {
		l.dropped++
		return
	}
	l.events = append(l.events, event)
	l.wake()
}

func (l *eventQueue) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.wake()
}

// wake is called with mu held.
func (l *eventQueue) wake() {
	select {
	case l.more <- struct{}{}:
	default:
	}
}

// take returns the events that wait, in order, how many were dropped, and whether there will be more.
func (l *eventQueue) take() (events []*corev1.Event, dropped int, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	events, dropped, ended = l.events, l.dropped, l.ended
	l.events, l.dropped = nil, 0
	return events, dropped, ended
}

// run writes the lane's events until it has ended and is empty, or ctx ends.
func (w *eventWriter) run(ctx context.Context, lane *eventQueue, yields bool) {
	for {
		events, dropped, ended := lane.take()
		if dropped > 0 {
			w.logger.Warn("too many events wait to be written, dropped some", "dropped", dropped)
		}
		for i, event := range events {
			if yields && !w.rush.yield(event.LastTimestamp.Time) || !w.write(ctx, event) {
				w.logger.Warn("events were not written before the controller ended", "events", len(events)-i)
				return
			}
		}
		if ended && len(events) == 0 {
			return
		}
		if len(events) == 0 {
			<-lane.more
		}
	}
}

// write writes one event and returns false if it could not before ctx ended. An event that the API server refuses is
// given up.
func (w *eventWriter) write(ctx context.Context, event *corev1.Event) bool {
	result, err := w.correlator.EventCorrelate(event)
	if err != nil {
		w.logger.Warn("cannot tell whether an event is a repetition", "event", event.Message, "error", err)
	}
	if result == nil || result.Skip {
		return true
	}
	for tries := 1; ; tries++ {
		written, err := w.send(ctx, result)
		if err == nil {
			w.correlator.UpdateState(written)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if isMoot(err) {
			return true
		}
		if isPermanent(err) || tries == eventTries {
			w.logger.Warn("event was not written", "event", event.Message, "tries", tries, "error", err)
			return true
		}
		pause := eventPause
		if tries == 1 {
			pause = rand.N(eventPause) // whoever lost the API server does not come back with all the others
		}
		if !w.sleep(ctx, pause) {
			return false
		}
	}
}

func (w *eventWriter) sleep(ctx context.Context, pause time.Duration) bool {
	timer := w.clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}

// send creates the event or, if it repeats an earlier one that is still there, counts it.
func (w *eventWriter) send(ctx context.Context, result *record.EventCorrelateResult) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	api, event := w.client.CoreV1().Events(""), result.Event
	if event.Count > 1 {
		written, err := api.PatchWithEventNamespaceWithContext(ctx, event, result.Patch)
		if !apierrors.IsNotFound(err) {
			return written, err
		}
	}
	event.ResourceVersion = ""
	written, err := api.CreateWithEventNamespaceWithContext(ctx, event)
	if err != nil {
		return nil, fmt.Errorf("create event: %w", err)
	}
	return written, nil
}

// isMoot returns whether the event is there, or nobody will look for it: its namespace goes.
func isMoot(err error) bool {
	return apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// isPermanent returns whether the same write would be answered in the same way again.
func isPermanent(err error) bool {
	var status *apierrors.StatusError
	var construction *rest.RequestConstructionError
	return errors.As(err, &status) || errors.As(err, &construction)
}
