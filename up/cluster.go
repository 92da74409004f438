package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/loglimit"
	"github.com/berth-dev/berth/internal/metricsserver"
	"github.com/berth-dev/berth/internal/systemdunit"
	"github.com/berth-dev/berth/page"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/timeline/metrics"
	"github.com/berth-dev/berth/up/containerd"
	"github.com/berth-dev/berth/up/isolate"
	"github.com/berth-dev/berth/up/removal"
	"github.com/berth-dev/berth/up/supervised"
	"github.com/berth-dev/berth/up/supervisor"
)

// kubeletPort is the kubelet's port on the pod bridge's address, which differs between clusters on one machine.
const kubeletPort = 10250

// Deps are the dependencies of a Cluster. Progress is required.
type Deps struct {
	// Progress shows the start and the stop.
	Progress supervisor.Display
	// Stopping returns, when the cluster is to stop, how systemd stops its service, if it does. ownPIDs says that this process is in a PID
	// namespace of its own. Nil means that no service manager does.
	Stopping func(ctx context.Context, ownPIDs bool) (systemdunit.Stop, error)
}

// RunConfig is the configuration of one run of a cluster.
type RunConfig struct {
	// Layout is where the cluster's files and addresses are; NewLayout returns it.
	Layout Layout
	// Demo applies the demo's manifest and shows how it comes up.
	Demo bool
	// Width is the terminal's width, 0 if the output is not a terminal.
	Width int
	// Member is set on a machine that joined a cluster: there is no control plane then, and no controllers.
	Member *Member
	// Without names those of OptionalComponents that this process does not run.
	Without []string
	// APIOnly runs the API server alone, with the controllers of garbage and namespaces: no node and nothing else of a cluster.
	APIOnly bool
	// Inside is the isolation of this process; nil in the machine's own namespaces.
	Inside *isolate.Inside
	// Argv is the command line of the process that the user started.
	Argv []string
}

// OptionalComponents are the components that a cluster can be started without: `berth node`, `berth csi-driver` and
// `berth controllers` can run them as well, or a cluster has its own service proxy or DNS.
func OptionalComponents() []string {
	return []string{
		"kubelet", "csi-driver", "provision", "csi-provisioner", "csi-attacher", "attachdetach", "replicaset", proxyName, dnsName, addressFilterName, firewallName,
		routesName, approverName, loadBalancerName, snapshotsName, pageName,
	}
}

// Cluster is one run of a whole Kubernetes. It has many methods because it is the composition root: each component has one
// that makes or runs it.
type Cluster struct {
	Layout
	config       RunConfig
	progress     supervisor.Display
	askStop      func(ctx context.Context, ownPIDs bool) (systemdunit.Stop, error)
	link         *supervised.Link // to the supervisor; nil unless this is the node's process
	clock        clock.WithTicker
	timeline     *timeline.Recorder
	stageMetrics *metrics.Stages // of the timeline
	// controllerMetrics are served beside those of the kubelet, and on the socket.
	controllerMetrics metricsserver.Registries
	logger            *slog.Logger
	startedAt         time.Time // the cluster
	processStartedAt  time.Time // the node's process
	// runtime is the config of the containerd that was started last.
	runtime atomic.Pointer[containerd.Config]
	// addressFilter says that Pods are kept to their own addresses.
	addressFilter bool
	// dnsLoop are the name servers of the machine that were found to lead back to the cluster's DNS.
	dnsLoop atomic.Pointer[[]string]
	// stopping is set once the supervisor wants the node to stop, and stopPlan before its components do.
	stopping atomic.Bool
	stopPlan stopPlan
	// kubelet is that of the components that run.
	kubelet atomic.Pointer[currentKubelet]
	// exitRecords is shared by all runs of containerd.
	exitRecords *containerd.ExitRecords
	// pageSocket is the page's listening socket, which the supervisor has, too; nil if there is no page.
	pageSocket *os.File
	page       *page.Server
	// servicesReady is the readiness of what Pods reach each other by, by component.
	servicesReady map[string]*readiness
}

// New returns a cluster that does nothing before Run.
func New(deps Deps, config RunConfig) (*Cluster, error) {
	if deps.Progress == nil {
		return nil, errors.New("up: Deps.Progress is required")
	}
	if config.Layout.DataDir == "" {
		return nil, errors.New("up: RunConfig.Layout is required")
	}
	clock := clock.RealClock{}
	recorder := timeline.New(clock, 0)
	return &Cluster{
		Layout: config.Layout, config: config, progress: newStartRecord(deps.Progress, recorder, config.Layout), askStop: deps.Stopping, clock: clock,
		timeline: recorder, stageMetrics: metrics.New(), logger: slog.New(slog.DiscardHandler),
		servicesReady: map[string]*readiness{proxyName: newReadiness(), dnsName: newReadiness()},
	}, nil
}

// Run prepares the machine and replaces this process by the supervisor, which runs the cluster until a signal ends it. It
// returns only with an error.
func (c *Cluster) Run(ctx context.Context) error {
	c.startedAt = c.clock.Now()
	created, lock, err := c.enter(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	clean, initialized := c.isClean(), c.isInitialized()
	proxyLock, err := c.claimProxy(ctx)
	defer proxyLock.Close() // closing nil does nothing
	var pageSocket *os.File
	if err == nil {
		pageSocket, err = c.openPage(ctx)
		defer pageSocket.Close()
	}
	if err == nil {
		err = c.prepare(ctx)
	}
	if err == nil {
		err = c.becomeSupervisor(ctx, clean, lock, proxyLock, pageSocket)
	}
	// A start that fails here leaves nothing behind.
	_ = proxyLock.Close()
	if clean {
		err = errors.Join(err, c.removeBridge(), c.removeProxyRules(context.WithoutCancel(ctx)),
			c.removeAddressFilter(context.WithoutCancel(ctx)), c.removeMasquerade6(context.WithoutCancel(ctx)), removal.Tree(c.RunDir))
	}
	if !initialized {
		err = errors.Join(err, c.removeState())
	}
	if created {
		err = errors.Join(err, isolate.RemoveUninitialized(c.DataDir))
	}
	return err
}

// enter checks the machine, makes the data directory and locks it. created reports whether the directory did not exist. In
// namespaces of its own the cluster has inherited the lock, and the machine is checked.
func (c *Cluster) enter(ctx context.Context) (created bool, lock *os.File, err error) {
	if c.config.Inside != nil {
		c.startedAt = c.config.Inside.StartedAt
		return false, c.config.Inside.Lock, nil
	}
	if err := c.check(ctx); err != nil {
		return false, nil, err
	}
	created, lock, err = c.makeDataDir(ctx)
	if err != nil {
		return created, lock, err
	}
	saved, err := readState(c.statePath())
	if err == nil && saved.Isolated { // nothing of it runs, so nothing can be taken over
		if err := c.endEarlierRun(ctx); err != nil {
			return created, nil, errors.Join(err, lock.Close())
		}
	}
	return created, lock, nil
}

// check checks the machine before anything is changed on it.
func (c *Cluster) check(ctx context.Context) error {
	if err := c.preflight(c.needsUserNamespace()); err != nil {
		return err
	}
	if c.runs(proxyName) {
		if err := CheckServices(ctx); err != nil {
			return err
		}
	}
	if err := c.checkNetworks(ctx, func(text string) { c.progress.Printf("%s", text) }); err != nil {
		return err
	}
	if c.Isolated || !c.isClean() { // processes of an earlier run may still have the ports
		return nil
	}
	return c.checkPorts(ctx)
}

// claimProxy claims this network namespace's service rules for the cluster, until the file is closed. A network namespace of its
// own needs no claim: then the file is nil.
func (c *Cluster) claimProxy(ctx context.Context) (*os.File, error) {
	if !c.runs(proxyName) || c.config.Inside != nil {
		return nil, nil //nolint:nilnil // see above
	}
	return c.lockProxy(ctx)
}

// prepare saves the cluster's state, stops the processes of an earlier run, and sets up the bridge.
func (c *Cluster) prepare(ctx context.Context) error {
	if err := c.saveState(); err != nil {
		return err
	}
	if err := c.makeDirectories(); err != nil {
		return err
	}
	ended, err := stopStale(ctx, c.RunDir)
	if err != nil {
		return err
	}
	for _, name := range ended {
		c.progress.Printf("stopped %s of an earlier run", name)
	}
	if err := c.ensureBridge(); err != nil {
		return err
	}
	if err := c.removeUnusedConfigs(); err != nil {
		return err
	}
	c.loadModules(ctx, neededModules())
	c.allowInotify()
	if c.runs(proxyName) {
		if err := errors.Join(filterBridge(), c.routeServices()); err != nil {
			c.progress.Printf("warning: %v", err)
		}
	} else if err := c.removeProxyRules(ctx); err != nil { // of an earlier run
		return err
	}
	if err := c.prepareTables(ctx); err != nil {
		return err
	}
	return c.checkPorts(ctx)
}

// openLog redirects the logs of the components in this process to a file; the terminal shows the progress.
func (c *Cluster) openLog() (*os.File, error) {
	file, err := os.OpenFile(c.Log("berth"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open berth's log: %w", err)
	}
	c.logger = slog.New(loglimit.New(
		slog.NewTextHandler(file, &slog.HandlerOptions{Level: slog.LevelInfo - slog.Level(c.Verbosity)}), c.clock))
	klog.SetSlogLogger(c.logger)
	c.exitRecords, err = containerd.NewExitRecords(containerd.ExitRecordsDeps{Logger: c.logger},
		containerd.Config{Root: c.ContainerdRoot(), RunDir: c.RunDir})
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// runUntilDone runs all components until ctx is done, and stops them in reverse order of their dependencies. keptPods says that
// the Pods run on, for the next start.
func (c *Cluster) runUntilDone(ctx context.Context) (keptPods bool, err error) {
	infrastructure := newGroup(ctx)
	c.superviseIn(infrastructure, "log rotation", c.newLogRotation)
	defer infrastructure.stop()
	required := c.startInfrastructure(infrastructure)
	stopCtx, stop := context.WithCancel(ctx)
	go contain.Guard("up.serveLink", "", func() { // until this process ends
		c.link.Serve(func() {
			c.stopping.Store(true)
			stop()
		})
	})()
	ctx = stopCtx
	if member := c.config.Member; member != nil {
		if err := member.Connect(ctx, member); err != nil {
			return false, ignoreStop(ctx, fmt.Errorf("node %s: %w", c.NodeName, err))
		}
	}
	endReports := c.reportSlowStart(ctx, startingPart{name: "the API server", ready: required.api, log: c.Log("controlplane")},
		startingPart{name: containerdName, ready: required.runtime, log: c.Log(containerdName)})
	err = required.wait(ctx)
	endReports()
	if err != nil {
		return false, ignoreStop(ctx, err)
	}
	components, err := c.startComponents(ctx)
	if err != nil {
		return false, ignoreStop(ctx, err)
	}
	if err = c.reportNode(ctx, required.controlplane); err == nil {
		err = components.defaults.wait(ctx)
	}
	if err == nil {
		c.link.Started()
		err = c.reportReady(ctx)
	}
	if err == nil {
		<-ctx.Done()
	}
	stopping := context.WithoutCancel(ctx)
	if ctx.Err() != nil {
		c.planStop(stopping)
	}
	return c.stopPlan.keepPods, errors.Join(ignoreStop(ctx, err), components.stop(stopping))
}

// ignoreStop drops an error that occurred after ctx was cancelled.
func ignoreStop(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// cleanupAfterRun removes what the next run does not need.
func (c *Cluster) cleanupAfterRun(ctx context.Context) error {
	if err := c.cleanup(ctx); err != nil {
		return fmt.Errorf("clean up after stopping: %w", err)
	}
	return nil
}

// logAndPrint reports an event of a running component on the terminal and in the log.
func (c *Cluster) logAndPrint(text string) {
	c.progress.Printf("%s  %s", c.clock.Now().Format(time.TimeOnly), text)
	c.logger.Warn(text)
}
