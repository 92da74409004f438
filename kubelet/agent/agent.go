package agent

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/eventsink"
	"github.com/berth-dev/berth/internal/filelock"
	podconfig "github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/eviction"
	"github.com/berth-dev/berth/kubelet/housekeeping"
	"github.com/berth-dev/berth/kubelet/memory"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/server"
	"github.com/berth-dev/berth/kubelet/starting"
	"github.com/berth-dev/berth/kubelet/status"
)

// Runtime is the container runtime: both services of the CRI. *cri.Client is one.
type Runtime = container.Runtime

// PodEvent is a change of one Pod on the node.
type PodEvent = status.Event

// Agent is the kubelet of one node.
type Agent struct {
	base         *base
	runtime      *runtimeComponents
	node         *nodeComponents
	storage      *storageComponents
	pods         *podComponents
	housekeeping *housekeeping.Manager
	server       *serverComponents
	eviction     *evictionComponents
	components   []component
}

// base is what the components share. It is complete before the first of them is made.
type base struct {
	config  Config
	deps    Deps
	metrics *registries
	// signals wake the pod workers.
	signals *podworker.Signals
	// statuses writes the statuses of Pods.
	statuses *status.Writer
	// podEvents sends the changes of Pods on the node.
	podEvents *status.Broadcaster
	// pressure is the node's current shortage of resources.
	pressure *eviction.Pressure
	// starts knows what is being started, to which writes yield that can wait.
	starts *starting.Gate
	// events writes events to the API server; nil if Deps.Recorder takes them.
	events *eventRecorder
	// ctx ends with Close: it is the context of calls that are given none.
	ctx    context.Context //nolint:containedctx // see above
	cancel context.CancelFunc
	// tracing makes the agent's spans; nil for none. shutdownTracing sends the last ones.
	tracing         trace.TracerProvider
	shutdownTracing func(context.Context) error
}

// newBase checks the configuration and sets defaults.
func newBase(deps Deps, config Config) (*base, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	if err := deps.complete(); err != nil {
		return nil, err
	}
	metrics, err := newRegistries(&deps, &config)
	if err != nil {
		return nil, err
	}
	b := &base{
		config: config, deps: deps, metrics: metrics, signals: podworker.NewSignals(), podEvents: &status.Broadcaster{},
		pressure: &eviction.Pressure{}, starts: starting.NewGate(deps.Clock),
	}
	if b.statuses, err = status.NewWriter(status.WriterDeps{
		Client: deps.Client, Observe: metrics.pods.ObserveStatusWrite, Yields: b.starts.Yields, Timeline: deps.Timeline,
		Clock: deps.Clock, Logger: deps.Logger,
	}, status.WriterConfig{}); err != nil {
		return nil, err
	}
	if deps.Recorder == nil {
		b.deps.Recorder, b.events = newRecorder(&deps, config.Node.Name, config.Events, b.starts.Yield)
	}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	if b.tracing, b.shutdownTracing, err = newTracing(b.ctx, &deps, &config); err != nil {
		b.cancel()
		return nil, err
	}
	return b, nil
}

// logger returns the logger of a component.
func (b *base) logger(component string) *slog.Logger {
	return b.deps.Logger.With("component", component)
}

// New returns an Agent. It does nothing yet: no file is created, no port opened, no request sent.
func New(deps Deps, config Config) (*Agent, error) {
	base, err := newBase(deps, config)
	if err != nil {
		return nil, err
	}
	a, err := compose(base)
	if err != nil {
		base.cancel()
		base.stopTracing(context.Background())
		return nil, err
	}
	return a, nil
}

// compose creates the components, each from those before it.
func compose(base *base) (*Agent, error) {
	runtime, err := newRuntime(base)
	if err != nil {
		return nil, err
	}
	node, err := newNode(base, runtime)
	if err != nil {
		return nil, err
	}
	allocatable := node.newAllocatable(base)
	storage, err := newStorage(base, node, allocatable)
	if err != nil {
		return nil, err
	}
	pods, err := newPods(base, runtime, node, storage, allocatable)
	if err != nil {
		return nil, err
	}
	keeper, err := newHousekeeping(base, runtime, node, storage, pods)
	if err != nil {
		return nil, err
	}
	server, err := newServer(base, runtime, node, storage, pods)
	if err != nil {
		return nil, err
	}
	evictions, err := newEviction(base, runtime, node, pods, keeper, server)
	if err != nil {
		return nil, err
	}
	addresses, err := newAddressWatcher(base, node, pods, server.setAddresses)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		base: base, runtime: runtime, node: node, storage: storage, pods: pods, housekeeping: keeper, server: server,
		eviction: evictions,
	}
	a.components = a.startTable(addresses, newRuntimeWatcher(base, runtime, node, pods))
	return a, nil
}

func newHousekeeping(base *base, runtime *runtimeComponents, node *nodeComponents, storage *storageComponents, pods *podComponents,
) (*housekeeping.Manager, error) {
	config, deps := &base.config, &base.deps
	return housekeeping.New(housekeeping.Deps{
		Runtime: runtime.client, Workers: pods.workers, PodEvents: base.podEvents, Volumes: storage.volumes, Cgroups: node.cgroups,
		Allocations: node.allocations, Links: runtime.links,
		Images: housekeeping.ImageObserver{
			Listed: node.pullRecords.Reconcile, Removed: node.manager.ImagesChanged, Count: base.metrics.images.CountRemoved,
		},
		Ready:  []<-chan struct{}{pods.workers.Ready(), node.nodeCgroups.Ready()},
		Tracer: base.tracer(), Recorder: deps.Recorder, Clock: deps.Clock, Logger: deps.Logger,
	}, housekeeping.Config{
		NodeName: config.Node.Name, PodLogsDir: config.Logs.PodsDir, LogMaxSize: config.Logs.MaxSize, LogMaxFiles: config.Logs.MaxFiles,
		LogWorkers: config.Logs.MaxWorkers, LogPeriod: config.Logs.MonitorPeriod,
		ImageGCHigh: config.Images.GCHigh, ImageGCLow: config.Images.GCLow, ImageMinAge: config.Images.MinAge, ImageMaxAge: config.Images.MaxAge,
	})
}

func newRuntimeWatcher(base *base, runtime *runtimeComponents, node *nodeComponents, pods *podComponents) *runtimeWatcher {
	podCIDR := ""
	if base.deps.standalone { // otherwise the Node has it
		podCIDR = base.config.Runtime.PodCIDR
	}
	return &runtimeWatcher{
		runtime: runtime, endpoint: base.config.Runtime.Endpoint, podCIDR: podCIDR, logger: base.deps.Logger,
		setup: node.nodeCgroups.Setup,
		status: func(resp *runtimeapi.StatusResponse) {
			pods.helper.UpdateRuntimeStatus(resp)
			// Without an API server the node does not ask again before the next connection: Pods just try.
			if !base.deps.standalone {
				base.signals.SetNetwork(networkError(resp))
			}
		},
		connected: func() {
			node.manager.RuntimeChanged()
			base.signals.RuntimeConnected()
		},
		lost: node.manager.RuntimeChanged,
	}
}

// startTable lists the components in the order of their start; they are stopped in reverse order.
func (a *Agent) startTable(addresses *addressWatcher, runtime *runtimeWatcher) []component {
	const needsAPI = true
	n, s, p := a.node, a.storage, a.pods
	table := []component{
		{"OOM kills", a.base.watchOOM, !needsAPI},
		{"packet filter", a.base.keepPacketFilter, !needsAPI},
		{"allocations", n.allocations.Start, !needsAPI},
		{"node allocatable", n.nodeCgroups.Start, !needsAPI},
		{"objects", s.objects.Start, !needsAPI},
		{"tokens", s.tokens.Start, !needsAPI},
		{"certificates", s.startIssuers, needsAPI},
		{"services", p.services.Start, needsAPI},
		{"node", n.manager.Start, needsAPI},
		{"csi drivers", s.csi.Start, needsAPI},
		{"csi node", s.csiNode.Start, needsAPI},
		{"csi limits", s.refreshLimits, needsAPI},
		{"plugins", s.plugins.Start, needsAPI},
		{"statuses", a.base.statuses.Start, !needsAPI},
		{"mirror pods", p.mirrors.Start, !needsAPI},
		{"volumes", s.volumes.Start, !needsAPI},
		{"probes", p.probes.Start, !needsAPI},
		{"runtime events", p.watcher.Start, !needsAPI},
		{"pod workers", p.workers.Start, !needsAPI},
		{"resources", p.startManagers(&a.base.config, n.managers), !needsAPI},
		{"housekeeping", a.housekeeping.Start, !needsAPI},
		{"eviction", a.eviction.pressure.Start, !needsAPI},
		{"ephemeral storage limits", a.eviction.limits.Start, !needsAPI},
		{"runtime connection", runtime.Start, !needsAPI},
		{"addresses", addresses.Start, !needsAPI},
		{"idle", a.watchIdle, !needsAPI},
		{"pod sources", p.sources.Start, !needsAPI},
		{"node shutdown", p.shutdown.Start, !needsAPI},
		{"server", a.server.Start, !needsAPI},
	}
	if a.base.deps.standalone {
		table = slices.DeleteFunc(table, func(c component) bool { return c.needsAPI })
	}
	return table
}

// Start runs the node's Pods until ctx ends, and returns when all its goroutines have. Containers run on: the next Start
// finds them. It is called once.
func (a *Agent) Start(ctx context.Context) error {
	lock := a.base.config.Lock
	if lock.File == "" {
		return a.run(ctx)
	}
	return filelock.Hold(ctx, a.base.deps.Clock, lock.File, lock.ExitOnContention, a.run)
}

// run is Start while the lock is held.
func (a *Agent) run(ctx context.Context) error {
	if events := a.base.events; events != nil {
		stop, err := events.start(ctx)
		if err != nil {
			return err
		}
		defer stop()
	}
	defer a.base.stopTracing(ctx)
	if err := a.prepare(); err != nil {
		return err
	}
	return runComponents(ctx, a.components)
}

// prepare does what comes before the start of the first component.
func (a *Agent) prepare() error {
	if err := a.node.nodeCgroups.Preflight(); err != nil {
		return err
	}
	for _, dir := range []string{a.base.config.RootDir, a.base.config.Logs.PodsDir} {
		if err := a.base.deps.OS.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("create directory %q of the kubelet: %w", dir, err)
		}
	}
	capacity, err := a.node.capacity()
	if err != nil {
		return err
	}
	config := newNodeConfig(&a.base.config)
	if err := config.CheckReserved(capacity); err != nil {
		return err
	}
	if err := a.pods.helper.DelegateIDs(a.base.ctx, a.base.config.Pods.most()); err != nil {
		return err
	}
	if err := a.node.managers.Open(); err != nil {
		return err
	}
	return a.base.prepareMachine(a.node.cgroups)
}

// watchIdle calls Deps.OnIdle when no Pod has changed for some seconds.
func (a *Agent) watchIdle(ctx context.Context) error {
	if a.base.deps.OnIdle == nil {
		return nil
	}
	watcher := memory.NewIdleWatcher(a.base.deps.Clock, func() {
		if err := a.base.deps.OnIdle(); err != nil {
			a.base.deps.Logger.Warn("failed to release idle memory", "error", err)
		}
	})
	defer a.Subscribe(func(PodEvent) { watcher.NoteActivity() })()
	return watcher.Start(ctx)
}

// Subscribe calls fn with each later change of a Pod, until the returned function is called. fn must not block, and may be
// called from several goroutines.
func (a *Agent) Subscribe(fn func(PodEvent)) (cancel func()) { return a.base.podEvents.Subscribe(fn) }

// HandlePod takes a change of one Pod from a source of the caller's own, with Pods that config.Decode made.
func (a *Agent) HandlePod(change podconfig.Change) { a.pods.sources.handler.handle(change) }

// SourcesReady says that the caller's sources have delivered all their Pods: what the runtime has beyond them is stopped,
// and what is left of others on the disk is removed. It must not be called on a runtime that another kubelet uses, too.
func (a *Agent) SourcesReady() { a.pods.sources.handler.sourcesReady() }

// LastSourceUpdate is when a source last delivered a Pod; zero if none has.
func (a *Agent) LastSourceUpdate() time.Time {
	nanoseconds := a.pods.sources.handler.lastUpdate.Load()
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}

// MissedEvents is how many Pods a relist of the runtime found changed without an event. It should be 0.
func (a *Agent) MissedEvents() int64 { return a.pods.watcher.MissedEvents() }

// Metrics gathers the agent's metrics.
func (a *Agent) Metrics() prometheus.Gatherer { return a.base.metrics.served }

// Healthy returns an error that names a component that does not respond. It is what /healthz reports.
func (a *Agent) Healthy(ctx context.Context) error { return server.CheckHealth(ctx, a.server.checks) }

// Serving is closed as soon as the server listens; without a server it is from the start.
func (a *Agent) Serving() <-chan struct{} { return a.server.ready() }

// newRecorder returns the recorder of an agent whose caller gives none. yield is that of eventsink.Deps.
func newRecorder(deps *Deps, nodeName string, limit EventConfig, yield func(context.Context, time.Time)) (record.EventRecorder, *eventRecorder) {
	if deps.EventClient == nil {
		return &record.FakeRecorder{}, nil
	}
	r := &eventRecorder{
		deps: eventsink.Deps{
			Client: deps.EventClient, Yield: yield, Logger: deps.Logger.With("component", "events"), Clock: deps.Clock,
		},
		source: corev1.EventSource{Component: "kubelet", Host: nodeName}, limit: limit,
	}
	return r, r
}
