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

	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// RelistPeriod is how often everything is listed although events flow: a net below a lost event.
	RelistPeriod = 2 * time.Minute
	// PollPeriod is how often everything is listed if the runtime has no events.
	PollPeriod = time.Second
	// retryDelay is the first wait before the event stream is opened again; it doubles up to maxRetryDelay.
	retryDelay    = 50 * time.Millisecond
	maxRetryDelay = 2 * time.Second
)

// Runtime is what is needed of the CRI's runtime service.
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
	// OnPodChanged is told of each Pod whose state in the runtime may have changed. It must not block.
	OnPodChanged func(uid types.UID)
	// OnListed, if set, is told after each full listing which Pods the runtime holds. It must not block.
	OnListed func(uids []types.UID)
	// ObserveRelist, if set, is told of each full listing that came to its end, and how long it took. It must not block.
	ObserveRelist func(took time.Duration)
	// Exits, if set, is asked how a container ended that the runtime says it does not know of.
	Exits ExitRecorder
	// Logger and Clock may be nil.
	Logger *slog.Logger
	Clock  clock.Clock
}

// Watcher follows the runtime. It is safe for concurrent use.
type Watcher struct {
	deps   Deps
	config Config

	missedEvents atomic.Int64
	// listing is held while everything is listed, so that one listing runs at a time.
	listing sync.Mutex

	mu sync.Mutex // guards all below
	// fingerprints is what was last known of each Pod: from a listing, or from a read.
	fingerprints map[types.UID]fingerprint
	// changed are the Pods to be told of; wake holds a value while it is not empty.
	changed map[types.UID]struct{}
	// unread is what events and listings have told of each Pod since it was read last.
	unread map[types.UID][]observation
	// complete says that everything was listed since the event stream is open.
	complete bool
	// relistNeeded asks for a listing: an event could not be told to belong to a Pod.
	relistNeeded bool
	// touched are, while a listing is under way, the Pods that an event or a read was about since it began, and whether
	// it was a read: of them the listing may be older than what is known. Nil otherwise.
	touched map[types.UID]bool
	wake    wakeup.Signal
}

// New makes a Watcher. Start runs it; Read works without.
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
	if config.RelistPeriod == 0 {
		config.RelistPeriod = RelistPeriod
	}
	return &Watcher{
		deps: deps, config: config, fingerprints: map[types.UID]fingerprint{}, changed: map[types.UID]struct{}{},
		unread: map[types.UID][]observation{},
		wake:   wakeup.NewSignal(),
	}, nil
}

// MissedEvents is how many Pods a slow listing found changed without an event having said so. It should stay 0 while the
// runtime sends events.
func (w *Watcher) MissedEvents() int64 { return w.missedEvents.Load() }

// Start follows the runtime until ctx ends. A runtime that goes away is waited for.
func (w *Watcher) Start(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error { w.notifyLoop(ctx); return nil })
	group.Go(func() error { w.watchEvents(ctx); return nil })
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
			w.deps.Logger.Warn("the container runtime sends no events; listing its containers instead",
				"period", PollPeriod, "remedy", "use containerd 1.7 or newer")
			w.poll(ctx)
			return
		}
		if opened {
			delay = retryDelay
		}
		w.deps.Logger.Warn("the container runtime's event stream ended", "error", err, "retry", delay)
		if !w.sleep(ctx, delay) {
			return
		}
		delay = min(2*delay, maxRetryDelay)
	}
}

// streamEvents opens the event stream, lists everything once, and drains the stream until it ends.
func (w *Watcher) streamEvents(ctx context.Context) (opened bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := w.deps.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return false, fmt.Errorf("open event stream: %w", err)
	}
	var group errgroup.Group
	defer func() { cancel(); _ = group.Wait(); w.setComplete(false) }()
	// The listing runs beside the drain, so that the stream is read from the first instant.
	group.Go(func() error { w.relistPeriodically(ctx); return nil })
	for {
		event, err := events.Recv()
		if err != nil {
			return opened, err
		}
		opened = true
		uid := uidOf(event)
		if uid == "" && event.ContainerEventType == runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT {
			continue // what is gone tells no name; only its owner removes it, and knows
		}
		if !w.alreadySeen(uid, event) {
			w.markChanged(uid)
		}
	}
}

// relistPeriodically lists at once, and then slowly, until ctx ends.
func (w *Watcher) relistPeriodically(ctx context.Context) {
	first := true
	delay := retryDelay
	for {
		wait := w.config.RelistPeriod
		if err := w.list(ctx, !first); err != nil && ctx.Err() == nil {
			w.deps.Logger.Warn("listing the runtime's containers failed", "error", err)
			wait, delay = delay, min(2*delay, maxRetryDelay)
		} else {
			first, delay = false, retryDelay
			w.setComplete(ctx.Err() == nil)
		}
		if !w.sleep(ctx, wait) {
			return
		}
	}
}

// setComplete notes whether everything was listed since the event stream is open.
func (w *Watcher) setComplete(complete bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.complete = complete
}

// poll stands in for events.
func (w *Watcher) poll(ctx context.Context) {
	for {
		if err := w.list(ctx, false); err != nil && ctx.Err() == nil {
			w.deps.Logger.Warn("listing the runtime's containers failed", "error", err)
		}
		if !w.sleep(ctx, PollPeriod) {
			return
		}
	}
}

// markChanged notes a Pod as dirty, or that all have to be listed if the UID is empty.
func (w *Watcher) markChanged(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if uid == "" {
		w.relistNeeded = true
	} else {
		w.changed[uid] = struct{}{}
		w.markTouched(uid, false)
	}
	w.wake.Notify()
}

// markTouched keeps a listing under way from overruling what is newer, an event or what was read. The caller holds mu.
func (w *Watcher) markTouched(uid types.UID, read bool) {
	if w.touched != nil {
		w.touched[uid] = w.touched[uid] || read
	}
}

// notifyLoop hands dirty Pods on until ctx ends.
func (w *Watcher) notifyLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake.C():
		}
		w.mu.Lock()
		dirty, relist := w.changed, w.relistNeeded
		w.changed, w.relistNeeded = map[types.UID]struct{}{}, false
		w.mu.Unlock()
		for uid := range dirty {
			w.deps.OnPodChanged(uid)
		}
		if relist {
			if err := w.list(ctx, false); err != nil && ctx.Err() == nil {
				w.deps.Logger.Warn("listing the runtime's containers failed", "error", err)
			}
		}
	}
}

func (w *Watcher) sleep(ctx context.Context, d time.Duration) bool {
	timer := w.deps.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

// uidOf finds the Pod an event is about, or "" if it does not say.
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
