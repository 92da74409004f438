package pleg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// RelistPeriod is how often everything is listed although events arrive: a safety net for a lost event.
	RelistPeriod = 2 * time.Minute
	// PollPeriod is how often everything is listed if the runtime sends no events.
	PollPeriod = time.Second
	// retryDelay is the first wait before the event stream is opened again; it doubles up to maxRetryDelay.
	retryDelay    = 50 * time.Millisecond
	maxRetryDelay = 2 * time.Second
)

// Runtime is the part of the CRI's runtime service that reads.
type Runtime interface {
	GetContainerEvents(ctx context.Context, in *runtimeapi.GetEventsRequest, opts ...grpc.CallOption,
	) (grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse], error)
	ListPodSandbox(ctx context.Context, in *runtimeapi.ListPodSandboxRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ListPodSandboxResponse, error)
	ListContainers(ctx context.Context, in *runtimeapi.ListContainersRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ListContainersResponse, error)
	PodSandboxStatus(ctx context.Context, in *runtimeapi.PodSandboxStatusRequest, opts ...grpc.CallOption,
	) (*runtimeapi.PodSandboxStatusResponse, error)
	ContainerStatus(ctx context.Context, in *runtimeapi.ContainerStatusRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ContainerStatusResponse, error)
}

// Config are the values a Watcher works with.
type Config struct {
	// RelistPeriod is how often everything is listed although events arrive; the constant RelistPeriod if zero.
	RelistPeriod time.Duration
}

// Deps are what a Watcher needs from others.
type Deps struct {
	Runtime Runtime
	// OnPodChanged is called for each Pod whose state in the runtime may have changed. It must not block.
	OnPodChanged func(uid types.UID)
	// OnListed, if set, is called after each relist with the Pods that the runtime has. It must not block.
	OnListed func(uids []types.UID)
	// OnActive, if set, is called before OnListed with those of its Pods that have containers which have not exited. It must not block.
	OnActive func(uids []types.UID)
	// Metrics may be nil.
	Metrics Metrics
	// Exits, if set, knows how containers ended whose exit code the runtime has lost.
	Exits ExitRecorder
	// Logger and Clock may be nil.
	Logger *slog.Logger
	Clock  clock.Clock
}

// Metrics records what a Watcher does. Its methods must not block.
type Metrics interface {
	// Relisted records how long a relist took.
	Relisted(took time.Duration)
	// StreamOpened records that the runtime's stream of events is open, StreamFailed that it could not be opened or has ended.
	StreamOpened()
	StreamFailed()
	// EventReceived records how old an event was when it came.
	EventReceived(age time.Duration)
}

// noMetrics records nothing.
type noMetrics struct{}

func (noMetrics) Relisted(time.Duration)      {}
func (noMetrics) StreamOpened()               {}
func (noMetrics) StreamFailed()               {}
func (noMetrics) EventReceived(time.Duration) {}

// Watcher watches the runtime. It is safe for concurrent use.
type Watcher struct {
	deps   Deps
	config Config

	missedEvents atomic.Int64
	// relist is notified when relistNeeded is set.
	relist wakeup.Signal

	mu sync.Mutex // guards all below
	// fingerprints is the last known state of each Pod: from a relist, or from a read.
	fingerprints map[types.UID]fingerprint
	// changed are the Pods that OnPodChanged is to be called for; wake is notified when it grows.
	changed map[types.UID]struct{}
	// unread is what events and relists have reported of each Pod since it was last read.
	unread map[types.UID][]observation
	// complete says that everything was listed since the event stream is open.
	complete bool
	// relistNeeded says that a relist is needed, since an event did not name its Pod.
	relistNeeded bool
	// touched are, during a relist, the Pods that an event or a read was about since it started, and whether it was a
	// read: for them the list may be older than the known state. Nil otherwise.
	touched map[types.UID]bool
	// unannounced are the Pods that the last relist found changed without an event, with the ids of what they had before and
	// after. The event may be under way: on a busy machine the runtime sends it seconds after the change.
	unannounced map[types.UID]map[string]bool
	wake        wakeup.Signal
}

// New returns a Watcher. Start runs it; Read works without Start.
func New(deps Deps, config Config) (*Watcher, error) {
	if deps.Runtime == nil {
		return nil, errors.New("pleg: Deps.Runtime is required")
	}
	if deps.OnPodChanged == nil {
		return nil, errors.New("pleg: Deps.OnPodChanged is required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Metrics == nil {
		deps.Metrics = noMetrics{}
	}
	if config.RelistPeriod == 0 {
		config.RelistPeriod = RelistPeriod
	}
	return &Watcher{
		deps: deps, config: config, fingerprints: map[types.UID]fingerprint{}, changed: map[types.UID]struct{}{},
		unread: map[types.UID][]observation{},
		wake:   wakeup.NewSignal(), relist: wakeup.NewSignal(),
	}, nil
}

// MissedEvents is how many Pods a relist found changed without an event that came until the next relist. It should stay 0
// while the runtime sends events.
func (w *Watcher) MissedEvents() int64 { return w.missedEvents.Load() }

// Start watches the runtime until ctx ends. It waits for a runtime that is away.
func (w *Watcher) Start(ctx context.Context) error {
	var group errgroup.Group
	group.Go(contain.Func("pleg.Start", "", func() error { w.notifyLoop(ctx); return nil }))
	group.Go(contain.Func("pleg.Start", "", func() error { w.watchEvents(ctx); return nil }))
	return group.Wait()
}

// watchEvents keeps an event stream open.
func (w *Watcher) watchEvents(ctx context.Context) {
	delay := retryDelay
	for ctx.Err() == nil {
		opened, err := w.streamEvents(ctx)
		if ctx.Err() != nil {
			return
		}
		if status.Code(err) == codes.Unimplemented {
			w.deps.Logger.Warn("the container runtime sends no events; listing its containers periodically",
				"period", PollPeriod, "remedy", "use containerd 1.7 or newer")
			w.poll(ctx)
			return
		}
		w.deps.Metrics.StreamFailed()
		if opened {
			delay = retryDelay
		}
		w.deps.Logger.Warn("event stream of the container runtime ended; reopening it", "error", err, "retry", delay)
		if !wakeup.Sleep(ctx, w.deps.Clock, delay) {
			return
		}
		delay = min(2*delay, maxRetryDelay)
	}
}

// streamEvents opens the event stream, lists everything once, and handles events until the stream ends.
func (w *Watcher) streamEvents(ctx context.Context) (opened bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := w.deps.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return false, fmt.Errorf("open event stream: %w", err)
	}
	w.deps.Metrics.StreamOpened()
	var group errgroup.Group
	defer func() { cancel(); _ = group.Wait(); w.setComplete(false) }()
	// The relist runs beside it, so that events are received from the first instant.
	group.Go(contain.Func("pleg.streamEvents", "", func() error { w.relistPeriodically(ctx); return nil }))
	for {
		event, err := events.Recv()
		if err != nil {
			return opened, err
		}
		opened = true
		w.deps.Metrics.EventReceived(w.deps.Clock.Since(time.Unix(0, event.CreatedAt)))
		uid := uidOf(event)
		w.announce(uid, event.ContainerId)
		if uid == "" && event.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT {
			continue // it does not name its Pod; the Pod's worker has removed it and knows
		}
		if !w.alreadySeen(uid, event) {
			w.markChanged(uid)
		}
	}
}

// relistPeriodically lists at once, then slowly and when it is needed, until ctx ends.
func (w *Watcher) relistPeriodically(ctx context.Context) {
	first := true
	delay := retryDelay
	for {
		wait := w.config.RelistPeriod
		needed := w.setRelistNeeded(false)
		if err := w.list(ctx, !first && !needed); err != nil && ctx.Err() == nil {
			w.deps.Logger.Warn("failed to list the runtime's containers; retrying", "error", err)
			if needed {
				w.setRelistNeeded(true)
			}
			wait, delay = delay, min(2*delay, maxRetryDelay)
		} else {
			first, delay = false, retryDelay
			w.setComplete(ctx.Err() == nil)
		}
		timer := w.deps.Clock.NewTimer(wait)
		select {
		case <-timer.C():
		case <-w.relist.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// setRelistNeeded records whether an event needs a relist, and returns whether one did.
func (w *Watcher) setRelistNeeded(needed bool) (before bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, w.relistNeeded = w.relistNeeded, needed
	return before
}

// setComplete records whether everything was listed since the event stream is open.
func (w *Watcher) setComplete(complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.complete = complete
}

// poll lists periodically where there are no events.
func (w *Watcher) poll(ctx context.Context) {
	for {
		if err := w.list(ctx, false); err != nil && ctx.Err() == nil {
			w.deps.Logger.Warn("failed to list the runtime's containers; retrying", "error", err)
		}
		if !wakeup.Sleep(ctx, w.deps.Clock, PollPeriod) {
			return
		}
	}
}

// markChanged marks a Pod as changed; an empty UID asks for a relist.
func (w *Watcher) markChanged(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if uid == "" {
		w.relistNeeded = true
		w.relist.Notify()
		return
	}
	w.changed[uid] = struct{}{}
	w.markTouched(uid, false)
	w.wake.Notify()
}

// markTouched keeps a relist under way from replacing newer state, of an event or of a read. The caller holds mu.
func (w *Watcher) markTouched(uid types.UID, read bool) {
	if w.touched != nil {
		w.touched[uid] = w.touched[uid] || read
	}
}

// notifyLoop calls OnPodChanged for changed Pods until ctx ends.
func (w *Watcher) notifyLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake.C():
		}
		w.mu.Lock()
		dirty := w.changed
		w.changed = map[types.UID]struct{}{}
		w.mu.Unlock()
		for uid := range dirty {
			w.deps.OnPodChanged(uid)
		}
	}
}

// uidOf returns the Pod that an event is about, or "" if the event does not name it.
func uidOf(event *runtimeapi.ContainerEventResponse) types.UID {
	if uid := event.GetPodSandboxStatus().GetMetadata().GetUid(); uid != "" {
		return types.UID(uid)
	}
	for _, c := range event.GetContainersStatuses() {
		if uid := c.GetLabels()[podUIDLabel]; uid != "" {
			return types.UID(uid)
		}
	}
	return ""
}
