package events

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	api "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// maxPending bounds the events that wait for containerd; one Pod has more only while containerd does not read them.
	maxPending = 2048
	// callTimeout bounds one call to containerd, connecting included.
	callTimeout = 5 * time.Second
	// attempts and firstDelay give containerd about a minute to return: 0.1 s, doubling to 10 s.
	attempts             = 12
	firstDelay, maxDelay = 100 * time.Millisecond, 10 * time.Second
)

// Publisher sends events from [Publisher.Run]. It is safe for concurrent use.
type Publisher struct {
	address, namespace string
	ready              chan struct{}

	mu      sync.Mutex // guards below
	pending []*types.Envelope
	closed  bool

	client *ttrpc.Client // of Run
}

// New returns a publisher to containerd's ttrpc socket, for a containerd namespace.
func New(address, namespace string) *Publisher {
	return &Publisher{address: strings.TrimPrefix(address, "unix://"), namespace: namespace, ready: make(chan struct{}, 1)}
}

// Publish queues an event and returns. An event that cannot be encoded is an error.
func (p *Publisher) Publish(topic string, event proto.Message) error {
	encoded, err := typeurl.MarshalAny(event)
	if err != nil {
		return fmt.Errorf("encode event %s: %w", topic, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.pending) >= maxPending {
		return fmt.Errorf("drop event %s: containerd has not taken %d events", topic, maxPending)
	}
	p.pending = append(p.pending, &types.Envelope{
		Timestamp: timestamppb.Now(), Namespace: p.namespace, Topic: topic,
		Event: &anypb.Any{TypeUrl: encoded.GetTypeUrl(), Value: encoded.GetValue()},
	})
	p.wake()
	return nil
}

// Close lets Run return once it has sent what is queued.
func (p *Publisher) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.wake()
}

func (p *Publisher) wake() {
	select {
	case p.ready <- struct{}{}:
	default:
	}
}

// Run sends events until ctx is done, or until Close and all is sent.
func (p *Publisher) Run(ctx context.Context) {
	defer p.disconnect()
	for {
		event, closed := p.next()
		if event == nil {
			if closed {
				return
			}
			select {
			case <-p.ready:
			case <-ctx.Done():
				return
			}
			continue
		}
		if err := p.send(ctx, event); err != nil {
			log.G(ctx).WithError(err).WithField("topic", event.Topic).Error("failed to send event")
		}
	}
}

// next removes the oldest event from the queue; nil if there is none.
func (p *Publisher) next() (event *types.Envelope, closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.pending) == 0 {
		p.pending = nil
		return nil, p.closed
	}
	event, p.pending = p.pending[0], p.pending[1:]
	return event, p.closed
}

func (p *Publisher) send(ctx context.Context, event *types.Envelope) (err error) {
	delay := firstDelay
	for attempt := range attempts {
		if attempt > 0 {
			select {
			case <-time.After(delay):
			case <-ctx.Done():
				return err
			}
			delay = min(2*delay, maxDelay)
		}
		if err = p.forward(ctx, event); err == nil {
			return nil
		}
		p.disconnect()
		if _, closed := p.state(); closed && attempt > 0 {
			return err // the shim ends; it does not wait for a containerd that is away
		}
	}
	return fmt.Errorf("after %d attempts: %w", attempts, err)
}

func (p *Publisher) state() (pending int, closed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending), p.closed
}

func (p *Publisher) forward(ctx context.Context, event *types.Envelope) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if p.client == nil {
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "unix", p.address)
		if err != nil {
			return fmt.Errorf("connect to containerd: %w", err)
		}
		p.client = ttrpc.NewClient(conn)
	}
	_, err := api.NewTTRPCEventsClient(p.client).Forward(ctx, &api.ForwardRequest{Envelope: event})
	return err
}

func (p *Publisher) disconnect() {
	if p.client == nil {
		return
	}
	if err := p.client.Close(); err != nil && !errors.Is(err, ttrpc.ErrClosed) && !errors.Is(err, net.ErrClosed) {
		log.L.WithError(err).Debug("failed to close the connection to containerd")
	}
	p.client = nil
}
