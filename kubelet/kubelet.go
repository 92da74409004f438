package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/opencontainers/cgroups"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/server/healthz"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/allocation"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/csinode"
	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/images/pullrecords"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/logs"
	"github.com/berth-dev/berth/kubelet/memory"
	"github.com/berth-dev/berth/kubelet/mirror"
	"github.com/berth-dev/berth/kubelet/node"
	"github.com/berth-dev/berth/kubelet/nodeaddress"
	"github.com/berth-dev/berth/kubelet/objects"
	"github.com/berth-dev/berth/kubelet/pleg"
	"github.com/berth-dev/berth/kubelet/pluginmanager"
	"github.com/berth-dev/berth/kubelet/podworker"
	"github.com/berth-dev/berth/kubelet/prober"
	"github.com/berth-dev/berth/kubelet/server"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/kubelet/token"
	"github.com/berth-dev/berth/kubelet/volumemanager"
	"github.com/berth-dev/berth/volume/csi"
)

// Runtime is the container runtime: both services of the CRI. *cri.Client is one.
type Runtime interface {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
}

// Kubelet is the node agent of one node.
type Kubelet struct {
	cfg  Config
	deps Deps

	// connection is nil if Deps.Runtime stands in for it.
	connection connection
	runtime    Runtime
	links      *logs.Links // nil if logs are not linked
	metrics    *prometheus.Registry
	// probeMetrics are apart, as /metrics/probes is.
	probeMetrics *prometheus.Registry
	requests     *server.RequestMetrics
	imageTimes   *imageTimes
	lives        *lives

	machine   *node.LinuxMachine
	addresses *nodeaddress.Store
	grants    *allocation.Store
	node      *node.Manager
	cgroups   *cm.Manager
	services  *services
	objects   *objects.Manager
	tokens    *token.Manager
	volumes   *volumemanager.Manager
	drivers   *csi.Drivers
	csi       *csi.Plugin
	csiNode   *csinode.Manager
	plugins   *pluginmanager.Manager
	probes    *prober.Manager
	images    *images.Manager
	ledger    *pullrecords.Manager
	statuses  *status.Writer
	builder   *builder
	watcher   *pleg.Watcher
	workers   *podworker.Manager
	source    *config.API
	mirrors   *mirror.Manager
	sources   sources
	readers   readers
	server    *server.Server // nil if nothing is listened on
	upkeep    upkeep
	health    []healthz.HealthChecker

	listed  chan struct{} // closed when the runtime was listed for the first time
	sourced chan struct{} // closed when all Pods were delivered for the first time
	// grounded is closed when the control groups above all Pods are there.
	grounded chan struct{}
	once     struct{ listed, sourced sync.Once }

	// The handlers may be added to before Start.
	lifecycle.PodSyncLoopHandlers
	lifecycle.PodSyncHandlers
	face face // what the names of the seed need beside
}

// connection is the part of *cri.Client that comes and goes.
type connection interface {
	Watch(ctx context.Context, changed func(connected bool)) error
	Close() error
	PID() int
}

// New makes a Kubelet. It does nothing yet: no file is made, no port opened, no call sent.
func New(cfg Config, deps Deps) (*Kubelet, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	if err := deps.complete(); err != nil {
		return nil, err
	}
	k := newKubelet(cfg, deps)
	for _, collector := range deps.Collectors {
		if err := k.metrics.Register(collector); err != nil {
			return nil, fmt.Errorf("kubelet: Deps.Collectors: %w", err)
		}
	}
	if err := k.assemble(); err != nil {
		return nil, err
	}
	return k, nil
}

func newKubelet(cfg Config, deps Deps) *Kubelet {
	registry := prometheus.NewRegistry()
	return &Kubelet{
		cfg: cfg, deps: deps, metrics: registry, probeMetrics: prometheus.NewRegistry(),
		requests: server.NewRequestMetrics(registry, deps.Clock), imageTimes: newImageTimes(registry), lives: newLives(registry, deps.Clock),
		listed: make(chan struct{}), sourced: make(chan struct{}), grounded: make(chan struct{}),
		face: newFace(),
	}
}

// assemble makes the rooms.
func (k *Kubelet) assemble() error {
	for _, step := range []func() error{k.connect, k.furnish, k.employ, k.open} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// Start makes the node's Pods run until ctx ends, and returns when all its goroutines have. Containers run on: the
// next Start finds them. It is called once.
func (k *Kubelet) Start(ctx context.Context) error {
	if k.cfg.LockFile == "" {
		return k.work(ctx)
	}
	return holdLock(ctx, k.deps.Clock, k.cfg.LockFile, k.cfg.ExitOnLockContention, k.work)
}

// work is Start, with the lock.
func (k *Kubelet) work(ctx context.Context) error {
	if err := k.prepare(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	run := func(what string, start func(context.Context) error) {
		group.Go(func() error {
			if err := start(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		})
	}
	if !k.deps.standalone {
		run("node", k.node.Start)
		run("services", k.services.Start)
		run("csi drivers", k.csi.Start)
		run("csi node", k.csiNode.Start)
		run("plugins", k.plugins.Start)
		if !k.face.fed {
			run("pod source", k.follow)
		}
	}
	run("addresses", k.followAddresses)
	run("mirror pods", k.mirrors.Start)
	run("extensions", k.extend)
	run("out of memory", k.watchOOM)
	for _, source := range k.sources.static {
		run("static pods", source.Start)
	}
	run("node allocatable", k.keepAllocatable)
	run("allocations", k.grants.Start)
	run("upkeep", k.upkeep.Start)
	run("objects", k.objects.Start)
	run("tokens", k.tokens.Start)
	run("volumes", k.volumes.Start)
	run("probes", k.probes.Start)
	run("statuses", k.statuses.Start)
	run("runtime events", k.watcher.Start)
	run("pod workers", k.workers.Start)
	run("orphans", k.sweep)
	run("runtime connection", k.attend)
	if k.server != nil {
		run("server", k.server.Start)
	}
	if k.deps.AtRest != nil {
		run("footprint", k.settle)
	}
	return group.Wait()
}

// Drift is how many Pods a slow listing of the runtime found changed without an event. It should be 0.
func (k *Kubelet) Drift() int64 { return k.watcher.MissedEvents() }

// Metrics gathers the node agent's metrics.
func (k *Kubelet) Metrics() prometheus.Gatherer { return k.metrics }

// prepare makes what has to be there before anything runs.
func (k *Kubelet) prepare() error {
	for _, dir := range []string{k.cfg.RootDir, k.cfg.PodLogsDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make directory %q of the node agent: %w", dir, err)
		}
	}
	if err := k.checkGround(); err != nil {
		return err
	}
	k.oldGroups(cgroups.IsCgroup2UnifiedMode())
	capacity, _, err := k.node.Resources()
	if err != nil {
		return err
	}
	if k.face.ownScore != nil {
		if err := k.face.ownScore(); err != nil {
			k.deps.Logger.Warn("the node agent's own out-of-memory score is left as it is", "error", err)
		}
	}
	k.word(capacity.Memory().Value(), false)
	return nil
}

// follow watches the node's Pods as soon as the Node exists, whose labels admission looks at.
func (k *Kubelet) follow(ctx context.Context) error {
	select {
	case <-k.node.Registered():
	case <-ctx.Done():
		return nil
	}
	return k.source.Start(ctx)
}

// attend tells the others when the runtime can be reached, and asks it what it can do.
func (k *Kubelet) attend(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	greet := func() {
		if err := k.ground(ctx); err != nil {
			fail(err)
			return
		}
		resp, err := k.runtime.Status(ctx, &runtimeapi.StatusRequest{})
		if err == nil {
			k.wordFor(resp)
			k.networkOf(resp)
		}
		k.node.RuntimeChanged()
		k.workers.RuntimeConnected()
	}
	if k.connection == nil {
		greet()
		return failure(ctx)
	}
	before := false
	err := k.connection.Watch(ctx, func(connected bool) {
		lost := before && !connected
		before = connected
		if lost {
			k.deps.Logger.Warn("the container runtime cannot be reached", "endpoint", k.cfg.RuntimeEndpoint)
			k.node.RuntimeChanged()
		}
		if connected {
			greet()
		}
	})
	return errors.Join(err, failure(ctx))
}

// failure is why a context was ended, if not by its parent.
func failure(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// wordFor takes what the runtime can do into the wording of Pods.
func (k *Kubelet) wordFor(resp *runtimeapi.StatusResponse) {
	recursive := false
	for _, handler := range resp.RuntimeHandlers {
		if handler.Name == "" {
			recursive = handler.GetFeatures().GetRecursiveReadOnlyMounts()
		}
	}
	if capacity, _, err := k.node.Resources(); err == nil {
		k.word(capacity.Memory().Value(), recursive)
	}
}

// networkOf tells the Pods' workers whether the runtime has a network for them. Without an API server nobody asks again
// before the next connection, so that Pods there just try.
func (k *Kubelet) networkOf(resp *runtimeapi.StatusResponse) {
	if k.deps.standalone {
		return
	}
	for _, condition := range resp.GetStatus().GetConditions() {
		if condition.Type == runtimeapi.NetworkReady && !condition.Status {
			k.workers.SetNetwork(fmt.Errorf("container runtime: %s: %s", condition.Reason, condition.Message))
			return
		}
	}
	k.workers.SetNetwork(nil)
}

// word makes the builder of CRI messages.
func (k *Kubelet) word(memory int64, recursiveReadOnly bool) {
	resources := cm.DetectResourceOptions()
	resources.MemoryCapacity, resources.SwapBehavior = memory, k.cfg.SwapBehavior
	if one := k.cfg.SingleProcessOOMKill; one != nil {
		resources.SingleProcessOOMKill = *one
	}
	if facts, err := k.machine.Info(); err == nil {
		resources.SwapCapacity = facts.Swap
	}
	k.builder.words.Store(kuberuntime.NewBuilder(kuberuntime.Config{
		PodLogsDir: k.cfg.PodLogsDir, SeccompRoot: k.cfg.RootDir + "/seccomp", DNS: k.dns(), Resources: resources,
		RecursiveReadOnly: recursiveReadOnly,
	}))
}

// settle tells the owner of the process when the node has come to rest.
func (k *Kubelet) settle(ctx context.Context) error {
	keeper := memory.NewIdleWatcher(k.deps.Clock, func() {
		if err := k.deps.AtRest(); err != nil {
			k.deps.Logger.Warn("making the process smaller failed", "error", err)
		}
	})
	defer k.Subscribe(func(Report) { keeper.NoteActivity() })()
	return keeper.Start(ctx)
}

// heldByRuntime takes a listing of the runtime.
func (k *Kubelet) heldByRuntime(uids []types.UID) {
	k.workers.RuntimePods(uids)
	k.once.listed.Do(func() { close(k.listed) })
}
