package csisidecar

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/berth-dev/berth/attachdetach/attacher"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/capacity"
	"github.com/berth-dev/berth/provision/claimwork"
	csiprovision "github.com/berth-dev/berth/provision/csi"
	"github.com/berth-dev/berth/provision/health"
	"github.com/berth-dev/berth/provision/modify"
	"github.com/berth-dev/berth/provision/nodeselect"
	"github.com/berth-dev/berth/provision/resize"
	"github.com/berth-dev/berth/provision/snapshot/grouptaker"
	"github.com/berth-dev/berth/provision/snapshot/taker"
)

// Sidecar runs the controllers of one driver.
type Sidecar struct {
	deps   Deps
	config Config
	// provisioner has the connection to the driver.
	provisioner *csiprovision.Provisioner
	// controller is nil without Config.Provision.
	controller *provision.ProvisionController
	// selector is nil without Config.SelectNode.
	selector *nodeselect.Selector
	// claims are the informers that resize and modify share.
	claims informers.SharedInformerFactory

	mu      sync.Mutex // guards running
	running []runnable
}

// runnable is a controller that reports its state.
type runnable interface {
	Start(ctx context.Context) error
	Ready() error
	Healthy() error
	RetryNow()
}

// New returns a Sidecar that does nothing before Start.
func New(deps Deps, config Config) (*Sidecar, error) {
	if err := errors.Join(config.validate(), deps.complete(config)); err != nil {
		return nil, fmt.Errorf("csisidecar: %w", err)
	}
	s := &Sidecar{deps: deps, config: config, claims: claimwork.NewInformers(deps.Client)}
	var err error
	if config.SelectNode {
		config.Driver.NeedsNode = func(claim *corev1.PersistentVolumeClaim) { s.selector.Consider(claim) }
	}
	s.provisioner, err = csiprovision.New(
		csiprovision.Deps{Client: deps.Client, Dynamic: deps.Dynamic, Logger: deps.Logger}, config.Driver)
	if err != nil {
		return nil, err
	}
	if !config.Provision {
		return s, nil
	}
	if config.SelectNode {
		if s.selector, err = s.newSelector(); err != nil {
			return nil, err
		}
	}
	options := []provision.Option{
		provision.Logger(deps.Logger), provision.Timeline(deps.Timeline), provision.LeaderElection(config.LeaderElection),
	}
	if config.LeaderElectionNamespace != "" {
		options = append(options, provision.LeaderElectionNamespace(config.LeaderElectionNamespace))
	}
	if deps.Registerer != nil {
		options = append(options, provision.Registerer(prometheus.WrapRegistererWith(
			prometheus.Labels{"provisioner": config.Driver.Name}, deps.Registerer)))
	}
	if config.NodeDeployment {
		options = append(options, provision.IntentFinalizer(nodeIntent(config.Driver.NodeName)))
	}
	for _, run := range s.runnables() {
		options = append(options, provision.WithRunnable(run))
	}
	s.controller, err = provision.New(deps.Client, config.Driver.Name, s.provisioner, append(options, config.ProvisionOptions...)...)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// runnables are the controllers that run beside the provision controller, while it leads.
func (s *Sidecar) runnables() []func(context.Context) error {
	var runnables []func(context.Context) error
	if s.config.Capacity {
		runnables = append(runnables, s.publishCapacity)
	}
	if s.config.Attach {
		runnables = append(runnables, s.attach)
	}
	if s.config.Resize {
		runnables = append(runnables, s.resize, s.modify)
	}
	if s.config.Snapshot {
		runnables = append(runnables, s.takeSnapshots)
	}
	if s.config.GroupSnapshot {
		runnables = append(runnables, s.takeGroupSnapshots)
	}
	if s.config.Health {
		runnables = append(runnables, s.monitorHealth)
	}
	if s.selector != nil {
		runnables = append(runnables, func(ctx context.Context) error { return s.start(ctx, s.selector) })
	}
	return runnables
}

// Start runs the controllers until ctx is done. It may be called once.
func (s *Sidecar) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	start := func(run func() error) { group.Go(contain.Func("csisidecar.Start", "", run)) }
	start(func() error { return s.provisioner.Start(ctx) })
	start(func() error { return s.provisioner.NotifyAvailable(ctx, s.retryNow) })
	if s.controller == nil {
		start(func() error { return s.attach(ctx) })
	} else {
		start(func() error { return s.controller.RunContext(ctx) })
	}
	return group.Wait()
}

// retryNow retries at once all that failed: the driver is back.
func (s *Sidecar) retryNow() {
	if s.controller != nil {
		s.controller.RetryNow()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, controller := range s.running {
		controller.RetryNow()
	}
}

// start runs one controller, which Ready and Healthy ask from now on.
func (s *Sidecar) start(ctx context.Context, controller runnable) error {
	s.mu.Lock()
	s.running = append(s.running, controller)
	s.mu.Unlock()
	return controller.Start(ctx)
}

// Ready returns nil while all controllers work with complete caches, or wait for the Lease.
func (s *Sidecar) Ready() error {
	var errs []error
	if s.controller != nil {
		errs = append(errs, s.controller.Ready())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.controller == nil && len(s.running) == 0 {
		errs = append(errs, fmt.Errorf("the controllers of driver %q do not run", s.config.Driver.Name))
	}
	for _, controller := range s.running {
		errs = append(errs, controller.Ready())
	}
	return errors.Join(errs...)
}

// Healthy returns an error while a worker of a controller is stuck.
func (s *Sidecar) Healthy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, controller := range s.running {
		errs = append(errs, controller.Healthy())
	}
	return errors.Join(errs...)
}

// IsWaiting returns whether the controllers wait for the Lease, which another process holds.
func (s *Sidecar) IsWaiting() bool { return s.controller != nil && s.controller.IsWaiting() }

func (s *Sidecar) publishCapacity(ctx context.Context) error {
	config := capacity.Config{
		DriverName: s.config.Driver.Name, Namespace: metav1.NamespaceSystem, Period: s.config.CapacityPeriod,
	}
	if s.config.NodeDeployment {
		config.NodeName, config.ManagedBy = s.config.Driver.NodeName, nodeManager(s.config.Driver.NodeName)
	}
	if s.config.PodNamespace != "" && s.config.PodName != "" {
		owner, err := capacity.OwnerForPod(ctx, s.deps.Client, s.config.PodNamespace, s.config.PodName)
		if err != nil {
			return err
		}
		config.Namespace, config.Owner = s.config.PodNamespace, owner
	}
	publisher, err := capacity.New(capacity.Deps{
		Client: s.deps.Client, Driver: s.provisioner, Logger: s.deps.Logger, Clock: s.deps.Clock, Registerer: s.deps.Registerer,
	}, config)
	if err != nil {
		return err
	}
	return s.start(ctx, publisher)
}

// claimDeps are what the controllers work with that change volumes when their claims change.
func (s *Sidecar) claimDeps() claimwork.Deps {
	return claimwork.Deps{
		Client: s.deps.Client, Informers: s.claims, Timeline: s.deps.Timeline, Logger: s.deps.Logger,
		Clock: s.deps.Clock, Registerer: s.deps.Registerer, Recorder: s.deps.Recorder,
	}
}

func (s *Sidecar) resize(ctx context.Context) error {
	resizer, err := resize.New(resize.Deps{Deps: s.claimDeps(), Driver: s.provisioner}, resize.Config{DriverName: s.config.Driver.Name})
	if err != nil {
		return err
	}
	return s.start(ctx, resizer)
}

func (s *Sidecar) modify(ctx context.Context) error {
	modifier, err := modify.New(modify.Deps{Deps: s.claimDeps(), Driver: s.provisioner}, modify.Config{DriverName: s.config.Driver.Name})
	if err != nil {
		return err
	}
	return s.start(ctx, modifier)
}

func (s *Sidecar) takeSnapshots(ctx context.Context) error {
	snapshots, err := taker.New(taker.Deps{
		Client: s.deps.Client, Snapshots: s.deps.Snapshots, Dynamic: s.deps.Dynamic, Driver: s.provisioner, Timeline: s.deps.Timeline,
		Logger: s.deps.Logger, Clock: s.deps.Clock, Registerer: s.deps.Registerer, Recorder: s.deps.Recorder,
	}, taker.Config{DriverName: s.config.Driver.Name, ExtraCreateMetadata: s.config.Driver.ExtraCreateMetadata})
	if err != nil {
		return err
	}
	return s.start(ctx, snapshots)
}

func (s *Sidecar) takeGroupSnapshots(ctx context.Context) error {
	groups, err := grouptaker.New(grouptaker.Deps{
		Client: s.deps.Client, Groups: s.deps.GroupSnapshots, Dynamic: s.deps.Dynamic, Driver: s.provisioner, Timeline: s.deps.Timeline,
		Logger: s.deps.Logger, Clock: s.deps.Clock, Registerer: s.deps.Registerer, Recorder: s.deps.Recorder,
	}, grouptaker.Config{DriverName: s.config.Driver.Name, ExtraCreateMetadata: s.config.Driver.ExtraCreateMetadata})
	if err != nil {
		return err
	}
	return s.start(ctx, groups)
}

func (s *Sidecar) monitorHealth(ctx context.Context) error {
	monitor, err := health.New(health.Deps{
		Client: s.deps.Client, Driver: s.provisioner, Logger: s.deps.Logger, Clock: s.deps.Clock, Recorder: s.deps.Recorder,
	}, health.Config{DriverName: s.config.Driver.Name})
	if err != nil {
		return err
	}
	return s.start(ctx, monitor)
}

func (s *Sidecar) attach(ctx context.Context) error {
	conn, err := s.provisioner.Conn()
	if err != nil {
		return err
	}
	controller, err := attacher.New(
		attacher.Deps{
			Client: s.deps.Client, Driver: csi.NewControllerClient(conn), Logger: s.deps.Logger, Clock: s.deps.Clock,
			Registerer: s.deps.Registerer,
		},
		attacher.Config{DriverName: s.config.Driver.Name})
	if err != nil {
		return err
	}
	return s.start(ctx, controller)
}

// Dial returns a connection to the driver's socket: a path, unix:/path or unix:///path. The driver need not serve yet.
// The caller closes the connection.
func Dial(socket string) (*grpc.ClientConn, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(socket, "unix:"), "//")
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to the CSI driver at %s: %w", socket, err)
	}
	return conn, nil
}
