package patience

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

const (
	// hold is how long the first event after a silence waits. It is below the second that events count in.
	hold = 500 * time.Millisecond
	// silence is how long no event has to come for the next to count as a first one. It is above the time in which a
	// queue of events hands over the next.
	silence = 20 * time.Millisecond
)

// Sink is an EventSink that holds the first event after a silence back, and with it those that come meanwhile. Then it
// takes all that waits without a pause: however many there are, none waits longer for it than the first. It is made for
// the queue of one EventBroadcaster, which keeps the order and the times of events; it is safe for concurrent use.
type Sink struct {
	to    record.EventSink
	clock clock.Clock
	done  <-chan struct{}

	mu   sync.Mutex // guards open; held while the first event waits, because those after it have to as well
	open time.Time  // until then events pass
}

var _ record.EventSink = (*Sink)(nil)

// NewSink makes a Sink before another. Nothing is held back any more once ctx has ended.
func NewSink(ctx context.Context, to record.EventSink, clk clock.Clock) *Sink {
	return &Sink{to: to, clock: clk, done: ctx.Done()}
}

// Create implements record.EventSink.
func (s *Sink) Create(event *corev1.Event) (*corev1.Event, error) {
	s.wait()
	defer s.passed()
	return s.to.Create(event)
}

// Update implements record.EventSink.
func (s *Sink) Update(event *corev1.Event) (*corev1.Event, error) {
	s.wait()
	defer s.passed()
	return s.to.Update(event)
}

// Patch implements record.EventSink.
func (s *Sink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	s.wait()
	defer s.passed()
	return s.to.Patch(event, data)
}

// wait returns when an event may pass.
func (s *Sink) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clock.Now().Before(s.open) {
		return
	}
	timer := s.clock.NewTimer(hold)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-s.done:
	}
	s.open = s.clock.Now().Add(silence)
}

// passed keeps the way open for an event that comes right after another.
func (s *Sink) passed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = s.clock.Now().Add(silence)
}
