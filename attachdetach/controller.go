package attachdetach

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/attachdetach/csi"
	"github.com/berth-dev/berth/attachdetach/iscsi"
	"github.com/berth-dev/berth/attachdetach/metrics"
	"github.com/berth-dev/berth/attachdetach/reconciler"
	"github.com/berth-dev/berth/attachdetach/statusupdater"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/eventsink"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// Controller is the attach/detach controller. Start runs it, once.
type Controller struct {
	deps   Deps
	config Config
	ready  atomic.Bool
}

// New returns a controller. It starts nothing.
func New(deps Deps, config Config) (*Controller, error) {
	deps, err := deps.complete()
	if err != nil {
		return nil, err
	}
	if config, err = config.complete(); err != nil {
		return nil, err
	}
	return &Controller{deps: deps, config: config}, nil
}

// Ready returns an error until both states of the world are complete and the reconciler runs.
func (c *Controller) Ready() error {
	if !c.ready.Load() {
		return fmt.Errorf("%s has not read the state of the cluster yet", Name)
	}
	return nil
}

// Start runs the controller until ctx ends, and returns once all its goroutines have ended.
func (c *Controller) Start(ctx context.Context) error {
	recorder := c.deps.Recorder
	if recorder == nil {
		var stop func()
		var err error
		recorder, stop, err = eventsink.StartRecorder(ctx, eventsink.Deps{
			Client: c.deps.Client.CoreV1(), Clock: c.deps.Clock, Logger: c.deps.Logger,
		}, eventsink.Config{}, corev1.EventSource{Component: Name})
		if err != nil {
			return fmt.Errorf("start %s: %w", Name, err)
		}
		defer stop()
	}
	a, err := c.build(recorder)
	if err != nil {
		return fmt.Errorf("start %s: %w", Name, err)
	}
	defer a.queue.ShutDown()
	if c.deps.Registerer != nil {
		if err := c.deps.Registerer.Register(a.metrics); err != nil {
			return fmt.Errorf("start %s: register metrics: %w", Name, err)
		}
		defer c.deps.Registerer.Unregister(a.metrics)
	}
	if c.config.NodeSelector != nil {
		c.deps.Logger.Info("attaching volumes for some nodes only", "selector", c.config.NodeSelector.String())
	}
	// The informers end with this context, and Shutdown waits for them.
	watching, stop := context.WithCancel(ctx)
	defer a.factory.Shutdown()
	defer stop()
	a.factory.StartWithContext(watching)
	if !toolscache.WaitFor(ctx, "", a.synced...) {
		return nil // ctx has ended
	}
	a.populator.rebuild()
	c.ready.Store(true)
	defer c.ready.Store(false)
	var running sync.WaitGroup
	running.Go(contain.Loop(ctx, "attachdetach.populate", "", a.populator.run))
	err = a.engine.Start(ctx)
	a.queue.ShutDown()
	running.Wait()
	return err
}

// components are the components of a running controller.
type components struct {
	factory   informers.SharedInformerFactory
	synced    []toolscache.DoneChecker
	queue     workqueue.TypedInterface[task]
	populator *populator
	engine    *reconciler.Engine
	metrics   *metrics.Collector
}

// build creates and connects the components. It starts nothing.
func (c *Controller) build(recorder record.EventRecorder) (*components, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(c.deps.Client, 0, informers.WithTransform(stripUnusedFields))
	storage, core := factory.Storage().V1(), factory.Core().V1()
	plugin, err := csi.New(csi.Deps{
		Client: c.deps.Client, Attachments: storage.VolumeAttachments(), Drivers: storage.CSIDrivers(),
		Logger: c.deps.Logger, Clock: c.deps.Clock,
	}, csi.Config{Timeout: c.config.AttachTimeout, Owner: c.config.owner()})
	if err != nil {
		return nil, err
	}
	plugins := append(operationexecutor.Plugins{}, c.deps.Plugins...)
	plugins = append(plugins, plugin, iscsi.Plugin{})
	desired := cache.NewDesiredStateOfWorld(plugins)
	actual, err := cache.NewActualStateOfWorld(cache.Deps{Plugins: plugins, Clock: c.deps.Clock, Logger: c.deps.Logger})
	if err != nil {
		return nil, err
	}
	collector := metrics.New(actual, desired)
	executor, err := operationexecutor.NewOperationExecutor(operationexecutor.Deps{
		Plugins: plugins, Recorder: recorder, Timeline: c.deps.Timeline, Logger: c.deps.Logger, Clock: c.deps.Clock,
		Nodes: func(ctx context.Context, name types.NodeName) (*corev1.Node, error) {
			return c.deps.Client.CoreV1().Nodes().Get(ctx, string(name), metav1.GetOptions{})
		},
		Observe: collector.Observe,
	}, operationexecutor.Config{AttachConcurrency: c.config.Parallel, DetachConcurrency: c.config.Parallel})
	if err != nil {
		return nil, err
	}
	foreign := &nodeSet{}
	engine, err := reconciler.New(reconciler.Deps{
		Desired: desired, Actual: actual, Executor: executor,
		Updater:  statusupdater.NewNodeStatusUpdater(c.deps.Client, core.Nodes().Lister(), actual),
		Nodes:    core.Nodes().Lister(),
		Manages:  func(node types.NodeName) bool { return !foreign.has(node) },
		Contends: plugin.IsBeingAttached,
		Recorder: recorder, Timeline: c.deps.Timeline, OnForcedDetach: collector.ForcedDetach,
		Clock: c.deps.Clock, Logger: c.deps.Logger,
	}, reconciler.Config{
		LoopPeriod: c.config.SafetyPeriod, MaxWaitForUnmount: c.config.MaxWaitForUnmount,
		SyncDuration: c.config.VerifyPeriod, DisableForceDetachOnTimeout: c.config.DisableForceDetachOnTimeout,
		NodeGoneGrace: c.config.NodeGoneGrace, StatusWriters: c.config.StatusWriters,
	})
	if err != nil {
		return nil, err
	}
	a := &components{factory: factory, engine: engine, metrics: collector, queue: workqueue.NewTyped[task]()}
	a.populator = &populator{
		logger: c.deps.Logger, clock: c.deps.Clock, config: c.config, queue: a.queue,
		desired: desired, actual: actual, executor: executor, engine: engine,
		plugin: plugin, listers: newListers(factory), foreign: foreign,
		pods: make(map[string]*podState), nodes: make(map[types.NodeName]nodeState),
		unmanaging: make(map[types.NodeName]struct{}),
		attachments: foundAttachments{
			pairs: make(map[string]cache.VolumeNode), deferred: make(map[corev1.UniqueVolumeName]map[string]struct{}),
		},
	}
	executor.OnCompletion(func(name corev1.UniqueVolumeName, _ types.NodeName) {
		a.queue.Add(task{kind: kindOperation, name: string(name)})
	})
	a.synced, err = a.watch(c.deps.OnClaimChanged)
	return a, err
}
