package provision

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/timeline"
)

const (
	// syncWorkers look at claims and write to the API, and as many at those whose call has just ended. They never wait
	// for a provisioner, so they are more than the calls that may run at once: the API server is what bounds them.
	syncWorkers = 16
	// cleanupWorkers remove intents; few, because claims that come meanwhile have to wait for what they have begun.
	cleanupWorkers = 4
	// writeTimeout bounds one API write that is finished although the controller is being stopped.
	writeTimeout = 30 * time.Second
	// firstWriteRetry and longestWriteRetry pace writes that the API server did not take.
	firstWriteRetry   = 100 * time.Millisecond
	longestWriteRetry = 30 * time.Second
)

// engine is one run of a controller: the caches, queues and states that live from Run's begin to its end.
type engine struct {
	name        string
	client      kubernetes.Interface
	provisioner Provisioner
	serves      func(string) bool
	settings    *settings
	metrics     *metrics
	events      record.EventRecorder
	logger      *slog.Logger
	clock       clock.WithTicker
	timeline    *timeline.Recorder

	claims    *claimIndex
	volumes   *volumeIndex
	classes   cache.Store
	nodes     cache.Store // nil: read the API
	states    *claimStates
	gate      *bindGate
	deletions *volumeStates

	// decide holds UIDs of claims to look at, saves those whose call has just ended, which are looked at too: were they
	// to queue up behind the claims that came meanwhile, the first volume of many would be saved after the last intent,
	// and whoever binds would be idle until then. calls are those whose provisioner call is next, deletes names of
	// volumes, tidies UIDs of claims that are Bound and still bear the intent.
	decide, saves, calls, deletes, cleanups workqueue.TypedDelayingInterface[string]
	claimLimiter, volumeLimiter             workqueue.RateLimiter
	claimWrites, volumeWrites               workqueue.TypedRateLimiter[string]
	unregister                              []func()
	handled                                 []cache.DoneChecker
	factory                                 informers.SharedInformerFactory
	claimInformer, volumeInformer           cache.SharedInformer
	classInformer                           cache.SharedInformer
}

func (ctrl *ProvisionController) newEngine(events record.EventRecorder, gate *bindGate) *engine {
	s := &ctrl.settings
	e := &engine{
		name: ctrl.provisionerName, client: ctrl.client, provisioner: ctrl.provisioner, serves: ctrl.serves,
		settings: s, metrics: ctrl.metrics, events: events, logger: s.logger.With("provisioner", ctrl.provisionerName),
		clock: s.clock, timeline: s.timeline,
		states: newClaimStates(), gate: gate, deletions: newVolumeStates(),
		claimLimiter: s.newLimiter(), volumeLimiter: s.newLimiter(),
		claimWrites:  newWriteLimiter(),
		volumeWrites: newWriteLimiter(),
		factory:      informers.NewSharedInformerFactory(ctrl.client, s.resyncPeriod),
	}
	e.claimInformer, e.volumeInformer, e.classInformer = s.claims, s.volumes, s.classes
	if s.claims == nil {
		e.claimInformer = e.factory.Core().V1().PersistentVolumeClaims().Informer()
	}
	if s.volumes == nil {
		e.volumeInformer = e.factory.Core().V1().PersistentVolumes().Informer()
	}
	if s.classes == nil {
		e.classInformer = e.factory.Storage().V1().StorageClasses().Informer()
	}
	if s.nodes != nil {
		e.nodes = s.nodes.GetStore()
	}
	e.claims = newClaimIndex(e.claimInformer.GetStore())
	e.volumes = newVolumeIndex(e.volumeInformer.GetStore(), e.isOurs)
	e.classes = e.classInformer.GetStore()
	return e
}

func newWriteLimiter() workqueue.TypedRateLimiter[string] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstWriteRetry, longestWriteRetry)
}

func (e *engine) newQueue(name string) workqueue.TypedDelayingInterface[string] {
	return workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{
		Name: name, Clock: e.clock,
	})
}

// run works until the context ends, then finishes what is in flight and returns. The caller calls it only
// while it may lead.
func (e *engine) run(ctx context.Context) error {
	e.decide, e.calls, e.deletes = e.newQueue("claims"), e.newQueue("calls"), e.newQueue("volumes")
	e.saves, e.cleanups = e.newQueue("saves"), e.newQueue("tidies")
	defer e.shutQueues()
	if err := e.subscribe(); err != nil {
		return err
	}
	defer e.unsubscribe()
	if !e.syncCaches(ctx) {
		if ctx.Err() != nil {
			return nil
		}
		return errors.New("wait for the caches of claims, volumes and classes: they did not sync")
	}
	source := func() (int, time.Duration) { return e.states.waiting(e.clock.Now()) }
	e.metrics.queue.source.Store(&source)
	defer e.metrics.queue.source.Store(nil)

	deciders, callers, tidiers := new(sync.WaitGroup), new(sync.WaitGroup), new(sync.WaitGroup)
	start := func(group *sync.WaitGroup, count int, queue workqueue.TypedDelayingInterface[string],
		handle func(context.Context, string)) {
		for range count {
			group.Go(func() { work(ctx, queue, handle) })
		}
	}
	start(deciders, syncWorkers, e.decide, e.syncClaim)
	start(deciders, syncWorkers, e.saves, e.syncClaim)
	start(tidiers, cleanupWorkers, e.cleanups, e.cleanup)
	start(callers, e.settings.threadiness, e.calls, e.runCall)
	start(callers, e.settings.threadiness, e.deletes, e.syncVolume)
	if p, ok := e.provisioner.(DeletionNotifier); ok {
		callers.Go(func() {
			if err := p.NotifyDeletable(ctx, e.notifyDeletable); err != nil && ctx.Err() == nil {
				e.logger.Warn("deletions that fail will be tried again by their backoff alone", "error", err)
			}
		})
	}

	<-ctx.Done()
	// Calls end first, so that what they return can still be saved by the deciders.
	e.calls.ShutDown()
	e.deletes.ShutDown()
	callers.Wait()
	e.saves.ShutDown()
	e.decide.ShutDown()
	deciders.Wait()
	e.gate.shutdown(writeTimeout)
	e.cleanups.ShutDown()
	tidiers.Wait()
	return nil
}

// work handles keys until the queue is shut down and empty. Handlers do nothing new once ctx has ended.
func work(ctx context.Context, queue workqueue.TypedDelayingInterface[string], handle func(context.Context, string)) {
	for {
		key, shutdown := queue.Get()
		if shutdown {
			return
		}
		handle(ctx, key)
		queue.Done(key)
	}
}

func (e *engine) shutQueues() {
	e.decide.ShutDown()
	e.saves.ShutDown()
	e.calls.ShutDown()
	e.deletes.ShutDown()
	e.cleanups.ShutDown()
}

// writeContext is the context of a write that should be finished even if the controller is being stopped.
func writeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
}

// requeue has the claim looked at now, and after the delay if there is one.
func (e *engine) requeue(uid types.UID, delay time.Duration) {
	if delay > 0 {
		e.decide.AddAfter(string(uid), delay)
		return
	}
	e.decide.Add(string(uid))
}

func (e *engine) mark(st *claimState, stage string, err error) {
	e.timeline.Mark(st.ref, timelineOwner, stage, "", err)
}

// object is the claim as it is or, if it is gone, as the unfinished work on it was begun or found.
func (st *claimState) object(now *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	switch {
	case now != nil:
		return now
	case st.claim != nil:
		return st.claim
	}
	return st.found
}
