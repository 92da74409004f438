package reconciler

import (
	"context"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/attachdetach/statusupdater"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

const (
	// DefaultNodeGoneGrace is how long after the deletion of a Node nothing can be mounted there any more: the time
	// that a kubelet's lease lasts.
	DefaultNodeGoneGrace = 40 * time.Second
	// DefaultStatusWriters is how many node statuses are written at once.
	DefaultStatusWriters = 16

	// statusRetry and maxStatusRetry bound the pause before a node's status is tried again.
	statusRetry    = 500 * time.Millisecond
	maxStatusRetry = time.Minute
	// minVerifyPeriod is the shortest time between verifications; a shorter one means never.
	minVerifyPeriod = time.Second
)

// Reconciler brings what is attached to what should be.
type Reconciler interface {
	// Run looks at everything once and then at what changes, until stopCh is closed. Attaches and detaches that have
	// begun by then are neither cancelled nor waited for. It must be called once only.
	Run(stopCh <-chan struct{})
}

// Options is all that a reconciler can be given. Desired, Actual, Executor and Updater are required.
type Options struct {
	// LoopPeriod is the time between the end of one pass over everything and the next. Such passes are a safety net:
	// changes are acted on at once, if the worlds are cache.Notifiers and the executor is a CompletionNotifier.
	// Zero means no such passes but the first.
	LoopPeriod time.Duration
	// MaxWaitForUnmount is how long a volume that is no longer wanted may stay mounted on a node that is not ready
	// before it is detached all the same. A Node's annotation AnnMaxWaitForUnmount stands above it, if Nodes is given.
	MaxWaitForUnmount time.Duration
	// SyncDuration is the time between verifications of what is attached. Less than a second means none.
	SyncDuration time.Duration
	// DisableReconciliationSync turns verifications off.
	DisableReconciliationSync bool
	// DisableForceDetachOnTimeout keeps MaxWaitForUnmount from forcing anything; the out-of-service taint still does.
	DisableForceDetachOnTimeout bool
	// NodeGoneGrace is how long after a Node's deletion its volumes count as unmounted. Default DefaultNodeGoneGrace.
	NodeGoneGrace time.Duration
	// StatusWriters is how many node statuses are written at once. Default DefaultStatusWriters.
	StatusWriters int

	Desired  cache.DesiredStateOfWorld
	Actual   cache.ActualStateOfWorld
	Executor operationexecutor.OperationExecutor
	Updater  statusupdater.NodeStatusUpdater
	// Nodes says whether nodes are ready, out of service, or gone. Without it MaxWaitForUnmount alone decides.
	Nodes corelisters.NodeLister
	// Manages says whether the reconciler works for the node: what is attached elsewhere counts, but is nobody's to detach
	// or report here. When the answer changes, NodeChanged has to be called. Nil means all nodes.
	Manages func(node types.NodeName) bool
	// Recorder writes events, Timeline what a Pod waits for, OnForcedDetach counts. All may be nil.
	Recorder       record.EventRecorder
	Timeline       *timeline.Recorder
	OnForcedDetach func(reason string)
	// Clock is the real one by default, Logger silent.
	Clock  clock.Clock
	Logger *slog.Logger
}

// Engine is the Reconciler. One goroutine, that of Run or Start, makes all decisions and owns all fields but the inbox.
type Engine struct {
	options  Options
	limits   limits
	logger   *slog.Logger
	clock    clock.Clock
	backoffs operationexecutor.BackoffTracker // nil if the executor is none
	inbox    *inbox
	statuses *statusWriter
	created  time.Time

	// operationCtx is the context of all attaches, detaches and writes; set by run.
	operationCtx context.Context
	// wakeups is when pairs and nodes are to be looked at again.
	wakeups *deadlines
	// waiting is, by volume, the nodes whose pairs wait for something else that happens to the volume.
	waiting map[corev1.UniqueVolumeName]map[types.NodeName]struct{}
	// detaching is the pairs that are off their node's list, or on the way, in order to be detached.
	detaching map[cache.VolumeNode]pendingDetach
	// statusBackoffs is the nodes whose status could not be written.
	statusBackoffs map[types.NodeName]statusBackoff
	// goneSince is since when Nodes have been seen to be missing.
	goneSince map[types.NodeName]time.Time
}

// pendingDetach is a detach that waits for the node's list to be written.
type pendingDetach struct {
	decision
	wasReported bool
}

// statusBackoff keeps a node's status from being written too often when that fails.
type statusBackoff struct {
	delay time.Duration
	until time.Time
}

var _ Reconciler = (*Engine)(nil)

// NewReconciler makes a Reconciler that waits loopPeriod between passes over everything; changes do not wait for it.
// After maxWaitForUnmountDuration a volume is detached even though it is still mounted, to handle nodes that have
// crashed. If a Pod wants the volume again before that, the detach is off. Every syncDuration it is verified that what
// counts as attached still is, unless disableReconciliationSync. See Options for more.
func NewReconciler(
	loopPeriod time.Duration,
	maxWaitForUnmountDuration time.Duration,
	syncDuration time.Duration,
	disableReconciliationSync bool,
	desiredStateOfWorld cache.DesiredStateOfWorld,
	actualStateOfWorld cache.ActualStateOfWorld,
	attacherDetacher operationexecutor.OperationExecutor,
	nodeStatusUpdater statusupdater.NodeStatusUpdater,
	recorder record.EventRecorder,
) Reconciler {
	return newEngine(Options{
		LoopPeriod: loopPeriod, MaxWaitForUnmount: maxWaitForUnmountDuration,
		SyncDuration: syncDuration, DisableReconciliationSync: disableReconciliationSync,
		Desired: desiredStateOfWorld, Actual: actualStateOfWorld,
		Executor: attacherDetacher, Updater: nodeStatusUpdater, Recorder: recorder,
	})
}

// New makes a Reconciler from Options. It subscribes to the worlds and the executor, and starts nothing.
func New(options Options) (*Engine, error) {
	if options.Desired == nil || options.Actual == nil || options.Executor == nil || options.Updater == nil {
		return nil, errors.New("make reconciler: Desired, Actual, Executor and Updater are required")
	}
	return newEngine(options), nil
}

func newEngine(o Options) *Engine {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.NodeGoneGrace <= 0 {
		o.NodeGoneGrace = DefaultNodeGoneGrace
	}
	if o.StatusWriters <= 0 {
		o.StatusWriters = DefaultStatusWriters
	}
	if o.OnForcedDetach == nil {
		o.OnForcedDetach = func(string) {}
	}
	e := &Engine{
		options: o, logger: o.Logger, clock: o.Clock, inbox: newInbox(), created: o.Clock.Now(),
		limits: limits{
			maxWaitForUnmount: o.MaxWaitForUnmount, nodeGoneGrace: o.NodeGoneGrace,
			forceDisabled: o.DisableForceDetachOnTimeout,
		},
		wakeups:        newDeadlines(),
		waiting:        make(map[corev1.UniqueVolumeName]map[types.NodeName]struct{}),
		detaching:      make(map[cache.VolumeNode]pendingDetach),
		statusBackoffs: make(map[types.NodeName]statusBackoff),
		goneSince:      make(map[types.NodeName]time.Time),
	}
	e.statuses = newStatusWriter(o.Updater, o.StatusWriters, e.inbox)
	e.backoffs, _ = o.Executor.(operationexecutor.BackoffTracker)
	for _, store := range []any{o.Desired, o.Actual} {
		if notifier, ok := store.(cache.Notifier); ok {
			notifier.Subscribe(e.inbox.addPair)
		}
	}
	if notifier, ok := o.Executor.(operationexecutor.CompletionNotifier); ok {
		notifier.OnCompletion(func(name corev1.UniqueVolumeName, node types.NodeName) {
			e.inbox.addPair(cache.VolumeNode{Volume: name, Node: node})
		})
	}
	return e
}

// Run implements Reconciler.
func (e *Engine) Run(stopCh <-chan struct{}) {
	ctx := wait.ContextForChannel(stopCh)
	e.run(ctx, context.WithoutCancel(ctx))
}

// Start runs until ctx ends, which also ends the attaches and detaches that have begun, and returns when nothing that
// it started runs any more. It is Run for owners that have to clean up, and must be called once only.
func (e *Engine) Start(ctx context.Context) error {
	e.run(ctx, ctx)
	e.statuses.wait()
	if waiter, ok := e.options.Executor.(interface{ Wait() }); ok {
		waiter.Wait()
	}
	return nil
}

// NodeChanged tells that the node became ready or unready, got or lost its out-of-service taint, came or went, or that
// its AnnMaxWaitForUnmount changed. It may be called at any time.
func (e *Engine) NodeChanged(node types.NodeName) { e.inbox.addNode(node) }

// Recheck has the pair looked at. It may be called at any time.
func (e *Engine) Recheck(pair cache.VolumeNode) { e.inbox.addPair(pair) }

// run is the loop. It returns when ctx has ended and the pass that was going on is over.
func (e *Engine) run(ctx, opCtx context.Context) {
	e.operationCtx = opCtx
	e.reconcileAll()
	lastSync, lastPass := e.created, e.clock.Now()
	timer := e.clock.NewTimer(time.Hour)
	defer timer.Stop()
	var armed time.Time
	for ctx.Err() == nil {
		e.reconcileDirty(ctx)
		now := e.clock.Now()
		if e.options.LoopPeriod > 0 && !now.Before(lastPass.Add(e.options.LoopPeriod)) {
			e.reconcileAll()
			lastPass = e.clock.Now()
		}
		if e.verifies() && now.Sub(lastSync) > e.options.SyncDuration {
			lastSync = now
			e.options.Executor.VerifyVolumesAreAttached(e.operationCtx, e.options.Actual.GetAttachedVolumesPerNode(), e.options.Actual)
		}
		if next := e.nextWakeup(now, lastSync, lastPass); !next.Equal(armed) {
			armed = next
			if !timer.Stop() {
				select { // it has fired already, which no one needs to know any more
				case <-timer.C():
				default:
				}
			}
			timer.Reset(next.Sub(now))
		}
		select {
		case <-ctx.Done():
		case <-e.inbox.wake:
		case <-timer.C():
			armed = time.Time{}
		}
	}
}

func (e *Engine) verifies() bool {
	return !e.options.DisableReconciliationSync && e.options.SyncDuration >= minVerifyPeriod
}

// nextWakeup is when the loop has to wake at the latest.
func (e *Engine) nextWakeup(now, lastSync, lastPass time.Time) time.Time {
	next := now.Add(time.Hour)
	if e.options.LoopPeriod > 0 {
		next = lastPass.Add(e.options.LoopPeriod)
	}
	if sync := lastSync.Add(e.options.SyncDuration + 1); e.verifies() && sync.Before(next) {
		next = sync
	}
	if at, ok := e.wakeups.next(); ok && at.Before(next) {
		next = at
	}
	return next
}
