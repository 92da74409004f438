package replicaset

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	typedappsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/expect"
	"github.com/berth-dev/berth/internal/eventsink"
	"github.com/berth-dev/berth/internal/startonce"
	"github.com/berth-dev/berth/reconcile"
)

// Name is the controller's name in logs, metrics, timelines and events.
const Name = "replicaset-controller"

// kind is what the controller references of Pods name as their owner.
var kind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")

// Controller reconciles ReplicaSets.
type Controller struct {
	deps   Deps
	config Config
	logger *slog.Logger
	// ownInformers is the factory that Start runs, nil if Deps.Informers is set.
	ownInformers informers.SharedInformerFactory
	pods         cache.Indexer
	sets         cache.Indexer
	lister       appslisters.ReplicaSetLister
	// replicaSets reads ReplicaSets from the cache or the controller's own last write, whichever is newer.
	replicaSets  *client.Resource[*appsv1.ReplicaSet, *appsv1.ReplicaSetList, typedappsv1.ReplicaSetInterface]
	runner       *controller.Controller
	expectations *expect.ExpectationsStore
	states       *stateByName
	recorder     record.EventRecorder // set by Start before the first run
	// terminatingUnsupported is set once the server has dropped status.terminatingReplicas from a write.
	terminatingUnsupported atomic.Bool
	once                   startonce.Guard
}

var _ reconcile.Reconciler = (*Controller)(nil)

// New returns a controller. It gets its informers from the factory but starts nothing.
func New(deps Deps, config Config) (*Controller, error) {
	deps, err := deps.complete()
	if err != nil {
		return nil, err
	}
	config, err = config.complete()
	if err != nil {
		return nil, err
	}
	c := &Controller{
		deps: deps, config: config, logger: deps.Logger.With("controller", Name),
		expectations: expect.NewExpectationsStore(), states: newStateByName(), recorder: deps.Recorder,
	}
	factory := deps.Informers
	if factory == nil {
		factory = informers.NewSharedInformerFactoryWithOptions(deps.Client, 0, informers.WithTransform(trim))
		c.ownInformers = factory
	}
	pods, sets := factory.Core().V1().Pods().Informer(), factory.Apps().V1().ReplicaSets().Informer()
	if err := pods.AddIndexers(cache.Indexers{byController: indexByController}); err != nil {
		return nil, fmt.Errorf("replicaset: index pods: %w", err)
	}
	if err := sets.AddIndexers(cache.Indexers{byController: indexByController}); err != nil {
		return nil, fmt.Errorf("replicaset: index replicasets: %w", err)
	}
	c.pods, c.sets, c.lister = pods.GetIndexer(), sets.GetIndexer(), factory.Apps().V1().ReplicaSets().Lister()
	c.replicaSets, err = client.New(deps.Client.AppsV1().ReplicaSets, sets, client.Config[*appsv1.ReplicaSet]{
		Resource: appsv1.Resource("replicasets"),
	})
	if err != nil {
		return nil, err
	}
	c.runner, err = controller.New(c, controller.Deps{
		Logger: deps.Logger, Clock: deps.Clock, Registerer: deps.Registerer,
	}, controller.Config{
		Name: Name, Workers: config.Workers, BackoffMin: config.BackoffMin, BackoffMax: config.BackoffMax,
	})
	if err != nil {
		return nil, err
	}
	c.runner.Watch(controller.For(sets))
	c.runner.Watch(controller.Owns(pods, controller.Owner{Group: kind.Group, Kind: kind.Kind}))
	c.runner.Watch(controller.Watches(pods, c.setsFor, mayBeAdopted))
	return c, nil
}

// Start runs the controller until ctx ends, and returns once all its goroutines have ended. A controller can be started once.
func (c *Controller) Start(ctx context.Context) error {
	if err := c.once.Begin(Name); err != nil {
		return err
	}
	if c.recorder == nil {
		recorder, stop, err := eventsink.StartRecorder(ctx, eventsink.Deps{
			Client: c.deps.Client.CoreV1(), Clock: c.deps.Clock, Logger: c.deps.Logger,
		}, eventsink.Config{}, corev1.EventSource{Component: Name})
		if err != nil {
			return fmt.Errorf("start replicaset controller: %w", err)
		}
		defer stop()
		c.recorder = recorder
	}
	if c.deps.Registerer != nil {
		collector := expect.NewCollector(Name, c.expectations)
		if err := c.deps.Registerer.Register(collector); err != nil {
			return fmt.Errorf("start replicaset controller: register metrics: %w", err)
		}
		defer c.deps.Registerer.Unregister(collector)
	}
	if c.ownInformers != nil {
		// The informers end with this context, and Shutdown waits for them.
		informersCtx, cancel := context.WithCancel(ctx)
		defer c.ownInformers.Shutdown()
		defer cancel()
		c.ownInformers.Start(informersCtx.Done())
	}
	return c.runner.Start(ctx)
}

// Ready returns nil once the caches have synced and the workers run.
func (c *Controller) Ready() error { return c.runner.Ready() }

// Healthy returns an error while a worker is stuck.
func (c *Controller) Healthy() error { return c.runner.Healthy() }

// setsFor returns requests for the ReplicaSets whose selector matches a Pod that has no controller.
func (c *Controller) setsFor(pod *corev1.Pod) []reconcile.Request {
	if metav1.GetControllerOfNoCopy(pod) != nil || len(pod.Labels) == 0 {
		return nil
	}
	sets, err := c.lister.ReplicaSets(pod.Namespace).List(labels.Everything())
	if err != nil {
		return nil // the informer's own store does not fail
	}
	var requests []reconcile.Request
	for _, rs := range sets {
		selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
		if err == nil && !selector.Empty() && selector.Matches(labels.Set(pod.Labels)) {
			requests = append(requests, controller.RequestFor(rs))
		}
	}
	return requests
}

// mayBeAdopted accepts events after which a Pod without a controller may be adopted.
func mayBeAdopted(event controller.Event) bool {
	return event.Type != controller.Deleted && metav1.GetControllerOfNoCopy(event.Object) == nil &&
		!event.Resync && controller.MetadataChanged()(event)
}
