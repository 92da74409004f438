package provision

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/timeline"
)

const (
	// syncWorkers is how many workers sync claims, and how many sync those whose call has just ended. They write to the API
	// and never wait for a provisioner, so there are more of them than calls at once: the API server is the bound.
	syncWorkers = 16
	// cleanupWorkers is how many workers remove intents. They are few, because claims that are created meanwhile wait for the
	// writes that have begun.
	cleanupWorkers = 4
	// writeTimeout bounds one API write that is finished although the controller is stopping.
	writeTimeout = 30 * time.Second
	// writeRetryMin and writeRetryMax bound the backoff of API writes that failed.
	writeRetryMin = 100 * time.Millisecond
	writeRetryMax = 30 * time.Second
)

// engine is one run of a controller: its caches, queues and states. It is large because every step of a claim and of a volume
// needs several of these; what can be decided without them is functions and types of their own.
type engine struct {
	name        string
	client      kubernetes.Interface
	provisioner Provisioner
	serves      func(provisionerName string) bool
	settings    *settings
	metrics     *metrics
	events      record.EventRecorder
	logger      *slog.Logger
	clock       clock.WithTicker
	timeline    *timeline.Recorder
	synced      *atomic.Bool
	retryNow    *atomic.Pointer[func()]

	informers informerSet
	claims    *claimIndex
	volumes   *volumeIndex
	classes   cache.Store

	states    *claimStates
	deletions *volumeStates
	gate      *bindGate
	queues    queues
	limits    limits
}

// queues are the work queues. Keys are UIDs of claims, in volumes names of PersistentVolumes. A claim may be in several
// queues; its state's mu and phase keep their workers apart.
type queues struct {
	// claims are to be synced. results are those whose call has just ended; they are synced by workers of their own:
	// behind the claims that are created meanwhile, the first volume of many would be saved after the last intent was
	// written, and Kubernetes would have nothing to bind until then.
	claims, results queue
	// calls are waiting for a call of the provisioner.
	calls queue
	// cleanups are Bound and still have the intent.
	cleanups queue
	// volumes are released, or need a change of our finalizer.
	volumes queue
}

type queue = workqueue.TypedDelayingInterface[string]

// limits are the backoffs of failed calls and of failed API writes.
type limits struct {
	claims, volumes           workqueue.RateLimiter
	claimWrites, volumeWrites workqueue.TypedRateLimiter[string]
}

func (ctrl *ProvisionController) newEngine(events record.EventRecorder, gate *bindGate) *engine {
	s := &ctrl.settings
	e := &engine{
		name: ctrl.provisionerName, client: ctrl.client, provisioner: ctrl.provisioner, serves: ctrl.serves,
		settings: s, metrics: ctrl.metrics, events: events, logger: s.logger.With("provisioner", ctrl.provisionerName),
		clock: s.clock, timeline: s.timeline, synced: &ctrl.synced, retryNow: &ctrl.retryNow,
		informers: newInformerSet(ctrl.client, s),
		states:    newClaimStates(), deletions: newVolumeStates(), gate: gate,
		limits: limits{
			claims: s.newLimiter(), volumes: s.newLimiter(),
			claimWrites: newWriteLimiter(), volumeWrites: newWriteLimiter(),
		},
	}
	e.claims = newClaimIndex(e.informers.claims.GetStore())
	e.volumes = newVolumeIndex(e.informers.volumes.GetStore(), e.isOurs)
	e.classes = e.informers.classes.GetStore()
	return e
}

func newWriteLimiter() workqueue.TypedRateLimiter[string] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[string](writeRetryMin, writeRetryMax)
}

func newQueues(clock clock.WithTicker) queues {
	named := func(name string) queue {
		return workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Name: name, Clock: clock})
	}
	return queues{
		claims: named("claims"), results: named("results"), calls: named("calls"),
		cleanups: named("cleanups"), volumes: named("volumes"),
	}
}

func (q queues) shutDown() {
	for _, each := range []queue{q.claims, q.results, q.calls, q.cleanups, q.volumes} {
		each.ShutDown()
	}
}

// run works until ctx ends, then finishes what is in flight and returns. The caller calls it only while it may lead.
func (e *engine) run(ctx context.Context) error {
	e.queues = newQueues(e.clock)
	defer e.queues.shutDown()
	if err := e.subscribe(); err != nil {
		if ctx.Err() != nil {
			return nil // an informer of the caller's may have ended with ctx, and takes no handler any more
		}
		return err
	}
	defer e.unsubscribe()
	if !e.informers.sync(ctx) {
		if ctx.Err() != nil {
			return nil
		}
		return errors.New("the caches of claims, volumes and classes did not sync")
	}
	source := func() (int, time.Duration) { return e.states.waiting(e.clock.Now()) }
	e.metrics.queue.source.Store(&source)
	defer e.metrics.queue.source.Store(nil)
	e.synced.Store(true)
	defer e.synced.Store(false)

	lasting := context.WithoutCancel(ctx) // workers end when their queue is shut down and empty
	var syncing, cleaning, calling sync.WaitGroup
	start := func(group *sync.WaitGroup, count int, from queue, handle func(context.Context, string)) {
		for range count {
			group.Go(contain.Loop(lasting, "provision.run", "", func(context.Context) { work(ctx, from, handle) }))
		}
	}
	start(&syncing, syncWorkers, e.queues.claims, e.syncClaim)
	start(&syncing, syncWorkers, e.queues.results, e.syncClaim)
	start(&cleaning, cleanupWorkers, e.queues.cleanups, e.cleanup)
	start(&calling, e.settings.threadiness, e.queues.calls, e.runCall)
	start(&calling, e.settings.threadiness, e.queues.volumes, e.syncVolume)
	e.startNotifiers(ctx, &calling)
	e.retryNow.Store(new(e.retryAll))
	defer e.retryNow.Store(nil)

	<-ctx.Done()
	// Calls end first, so that their results can still be saved by the sync workers.
	e.queues.calls.ShutDown()
	e.queues.volumes.ShutDown()
	calling.Wait()
	e.queues.results.ShutDown()
	e.queues.claims.ShutDown()
	syncing.Wait()
	e.gate.shutdown(writeTimeout)
	e.queues.cleanups.ShutDown()
	cleaning.Wait()
	return nil
}

// panicDelay is when a key is handled again whose handler panicked.
const panicDelay = time.Minute

// work handles keys until the queue is shut down and empty. Handlers begin nothing new once ctx has ended.
func work(ctx context.Context, from queue, handle func(context.Context, string)) {
	for {
		key, shutdown := from.Get()
		if shutdown {
			return
		}
		if contain.Do("provision.handle", key, func() error { handle(ctx, key); return nil }) != nil {
			from.AddAfter(key, panicDelay)
		}
		from.Done(key)
	}
}

// writeContext is the context of a write that is finished even if the controller is stopping.
func writeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
}

// requeue syncs the claim again after the delay.
func (e *engine) requeue(uid types.UID, delay time.Duration) {
	e.queues.claims.AddAfter(string(uid), delay)
}

func (e *engine) mark(st *claimState, stage string, err error) {
	e.timeline.Mark(st.ref, timelineOwner, stage, "", err)
}
