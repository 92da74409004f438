package reconciler

import (
	"context"
	"fmt"
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
	"github.com/berth-dev/berth/internal/deadlines"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

const (
	// DefaultNodeGoneGrace is how long after the deletion of a Node its volumes may still be mounted: the duration of a
	// kubelet's lease.
	DefaultNodeGoneGrace = 40 * time.Second
	// DefaultStatusWriters is how many node statuses are written at once.
	DefaultStatusWriters = 16

	// statusRetry and maxStatusRetry bound the delay before a node's status write is retried.
	statusRetry    = 500 * time.Millisecond
	maxStatusRetry = time.Minute
	// minVerifyPeriod is the shortest period of verifications; a shorter one turns them off.
	minVerifyPeriod = time.Second
)

// Reconciler attaches and detaches volumes until the actual state of the world matches the desired one.
type Reconciler interface {
	// Run reconciles everything once and then what changes, until stopCh is closed. It neither cancels attaches and
	// detaches that have begun by then nor waits for them. It must be called only once.
	Run(stopCh <-chan struct{})
}

// Deps are the dependencies of a reconciler. Desired, Actual, Executor and Updater are required.
type Deps struct {
	Desired  cache.DesiredStateOfWorld
	Actual   cache.ActualStateOfWorld
	Executor operationexecutor.OperationExecutor
	Updater  statusupdater.NodeStatusUpdater
	// Nodes is where the reconciler reads whether nodes are ready, out of service or deleted. Without it MaxWaitForUnmount
	// alone decides.
	Nodes corelisters.NodeLister
	// Manages reports whether the reconciler works for the node. Attachments to other nodes count, but the reconciler neither
	// detaches nor reports them. When the result changes, NodeChanged has to be called. Nil means all nodes.
	Manages func(node types.NodeName) bool
	// Contends reports whether the volume is neither attached to the node nor being detached from it, so that the controller of
	// a node that Manages excludes tries to attach it. When the result changes, Recheck has to be called. Nil means never.
	Contends func(name corev1.UniqueVolumeName, node types.NodeName) bool
	// Recorder writes events, Timeline records what Pods wait for, OnForcedDetach counts forced detaches. All may be nil.
	Recorder       record.EventRecorder
	Timeline       *timeline.Recorder
	OnForcedDetach func(reason string)
	// Clock defaults to the real clock, Logger to one that discards.
	Clock  clock.Clock
	Logger *slog.Logger
}

// Config is the configuration of a reconciler.
type Config struct {
	// LoopPeriod is the time between the end of one pass over everything and the next. Such passes are a safety net:
	// changes are acted on at once, if the two states are cache.Notifiers and the executor is a CompletionNotifier.
	// Zero means no such passes but the first.
	LoopPeriod time.Duration
	// MaxWaitForUnmount is how long a volume that no Pod uses any more may stay mounted on a node that is not ready
	// before it is detached all the same. A Node's annotation AnnMaxWaitForUnmount overrides it, if Deps.Nodes is set.
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
}

// validate returns an error that names a dependency that is missing.
func (d Deps) validate() error {
	for _, required := range []struct {
		name    string
		missing bool
	}{
		{"Desired", d.Desired == nil}, {"Actual", d.Actual == nil}, {"Executor", d.Executor == nil}, {"Updater", d.Updater == nil},
	} {
		if required.missing {
			return fmt.Errorf("attachdetach/reconciler: Deps.%s is required", required.name)
		}
	}
	return nil
}

func (d Deps) withDefaults() Deps {
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.OnForcedDetach == nil {
		d.OnForcedDetach = func(string) {}
	}
	return d
}

func (c Config) withDefaults() Config {
	if c.NodeGoneGrace <= 0 {
		c.NodeGoneGrace = DefaultNodeGoneGrace
	}
	if c.StatusWriters <= 0 {
		c.StatusWriters = DefaultStatusWriters
	}
	return c
}

// Engine is the Reconciler. One goroutine, that of Run or Start, makes all decisions and owns all fields but the inbox.
type Engine struct {
	deps     Deps
	config   Config
	limits   limits
	logger   *slog.Logger
	clock    clock.Clock
	backoffs operationexecutor.BackoffTracker // nil if the executor is none
	inbox    *inbox
	statuses *statusWriter
	created  time.Time

	// operationCtx is the context of all attaches, detaches and status writes; run sets it.
	operationCtx context.Context
	// wakeups is when pairs are to be reconciled again. A pair without volume stands for the status of its node.
	wakeups *deadlines.Queue[cache.VolumeNode]
	// waiting is, by volume, the nodes whose pairs wait for a change of the volume's other attachments or operations.
	waiting map[corev1.UniqueVolumeName]map[types.NodeName]struct{}
	// detaching is the pairs to be detached, whose removal from their node's status is being written.
	detaching map[cache.VolumeNode]pendingDetach
	// statusBackoffs has the nodes whose status could not be written.
	statusBackoffs map[types.NodeName]statusBackoff
	// goneSince is when missing Nodes were first seen to be missing.
	goneSince map[types.NodeName]time.Time
}

// pendingDetach is a detach that waits for the write of the node's status.
type pendingDetach struct {
	decision
	wasReported bool
	mounted     bool // as the node had reported when it was decided
}

// statusBackoff delays the retry of a node status write that failed.
type statusBackoff struct {
	delay time.Duration
	until time.Time
}

var _ Reconciler = (*Engine)(nil)

// NewReconciler returns a Reconciler that waits loopPeriod between passes over everything; changes do not wait for it.
// After maxWaitForUnmountDuration it detaches a volume that is still mounted, to handle nodes that have crashed. If a Pod
// uses the volume again before that, the detach is cancelled. Every syncDuration it verifies that attached volumes still
// are, unless disableReconciliationSync is set. New has more options.
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
	return newEngine(Deps{
		Desired: desiredStateOfWorld, Actual: actualStateOfWorld, Executor: attacherDetacher, Updater: nodeStatusUpdater,
		Recorder: recorder,
	}, Config{
		LoopPeriod: loopPeriod, MaxWaitForUnmount: maxWaitForUnmountDuration,
		SyncDuration: syncDuration, DisableReconciliationSync: disableReconciliationSync,
	})
}

// New returns a Reconciler. It subscribes to both states of the world and to the executor, and starts nothing.
func New(deps Deps, config Config) (*Engine, error) {
	if err := deps.validate(); err != nil {
		return nil, err
	}
	return newEngine(deps, config), nil
}

func newEngine(deps Deps, config Config) *Engine {
	deps, config = deps.withDefaults(), config.withDefaults()
	e := &Engine{
		deps: deps, config: config, logger: deps.Logger, clock: deps.Clock, inbox: newInbox(), created: deps.Clock.Now(),
		limits: limits{
			maxWaitForUnmount: config.MaxWaitForUnmount, nodeGoneGrace: config.NodeGoneGrace,
			forceDisabled: config.DisableForceDetachOnTimeout,
		},
		wakeups:        deadlines.New[cache.VolumeNode](),
		waiting:        make(map[corev1.UniqueVolumeName]map[types.NodeName]struct{}),
		detaching:      make(map[cache.VolumeNode]pendingDetach),
		statusBackoffs: make(map[types.NodeName]statusBackoff),
		goneSince:      make(map[types.NodeName]time.Time),
	}
	e.statuses = newStatusWriter(deps.Updater, config.StatusWriters, e.inbox)
	e.backoffs, _ = deps.Executor.(operationexecutor.BackoffTracker)
	for _, store := range []any{deps.Desired, deps.Actual} {
		if notifier, ok := store.(cache.Notifier); ok {
			notifier.Subscribe(e.inbox.addPair)
		}
	}
	if notifier, ok := deps.Executor.(operationexecutor.CompletionNotifier); ok {
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

// Start runs the reconciler until ctx ends, which also cancels the attaches and detaches that have begun, and returns when
// all of them have ended. It must be called only once, and not together with Run.
func (e *Engine) Start(ctx context.Context) error {
	e.run(ctx, ctx)
	e.statuses.wait()
	if waiter, ok := e.deps.Executor.(interface{ Wait() }); ok {
		waiter.Wait()
	}
	return nil
}

// NodeChanged notifies the reconciler that the node became ready or unready, got or lost its out-of-service taint, was
// created or deleted, or that its AnnMaxWaitForUnmount changed. It may be called at any time.
func (e *Engine) NodeChanged(node types.NodeName) { e.inbox.addNode(node) }

// Recheck reconciles the pair soon. It may be called at any time.
func (e *Engine) Recheck(pair cache.VolumeNode) { e.inbox.addPair(pair) }

// run is the loop. It returns when ctx has ended and the current pass is over.
func (e *Engine) run(ctx, opCtx context.Context) {
	e.operationCtx = opCtx
	e.reconcileAll()
	lastSync, lastPass := e.created, e.clock.Now()
	timer := e.clock.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		e.reconcileDirty(ctx)
		now := e.clock.Now()
		if e.config.LoopPeriod > 0 && !now.Before(lastPass.Add(e.config.LoopPeriod)) {
			e.reconcileAll()
			lastPass = e.clock.Now()
		}
		if e.verifies() && now.Sub(lastSync) > e.config.SyncDuration {
			lastSync = now
			e.deps.Executor.VerifyVolumesAreAttached(e.operationCtx, e.deps.Actual.GetAttachedVolumesPerNode(), e.deps.Actual)
		}
		next := e.nextWakeup(now, lastSync, lastPass)
		if !timer.Stop() {
			select { // it has fired already; this is not needed any more
			case <-timer.C():
			default:
			}
		}
		timer.Reset(next.Sub(e.clock.Now())) // not now: the passes took a while
		if !next.After(e.clock.Now()) {
			continue
		}
		select {
		case <-ctx.Done():
		case <-e.inbox.wake.C():
		case <-timer.C():
		}
	}
}

func (e *Engine) verifies() bool {
	return !e.config.DisableReconciliationSync && e.config.SyncDuration >= minVerifyPeriod
}

// nextWakeup is when the loop has to run at the latest.
func (e *Engine) nextWakeup(now, lastSync, lastPass time.Time) time.Time {
	next := now.Add(time.Hour)
	if e.config.LoopPeriod > 0 {
		next = lastPass.Add(e.config.LoopPeriod)
	}
	if sync := lastSync.Add(e.config.SyncDuration + 1); e.verifies() && sync.Before(next) {
		next = sync
	}
	if at, ok := e.wakeups.Next(); ok && at.Before(next) {
		next = at
	}
	return next
}

// dueWakeups removes and returns the pairs and nodes whose time has come.
func (e *Engine) dueWakeups() []cache.VolumeNode {
	return e.wakeups.PopAllDue(e.clock.Now())
}
