package csisidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/attachdetach/attacher"
	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/capacity"
	csiprovision "github.com/berth-dev/berth/provision/csi"
	"github.com/berth-dev/berth/provision/resize"
	"github.com/berth-dev/berth/timeline"
)

// Deps are what the controllers work with.
type Deps struct {
	// Client is required.
	Client kubernetes.Interface
	// Dynamic reads VolumeSnapshots, whose kind only some clusters have. Config.Provision requires it.
	Dynamic dynamic.Interface
	// Timeline records what the controllers do; it may be nil.
	Timeline *timeline.Recorder
	// Logger receives the controllers' logs; nil discards them.
	Logger *slog.Logger
	// Clock may be nil for the real one.
	Clock clock.WithTicker
}

// Config selects the controllers of one driver.
type Config struct {
	// Driver has the driver's name and socket, both required, and the options of its calls.
	Driver csiprovision.Config
	// Provision provisions and deletes the driver's volumes.
	Provision bool
	// Capacity publishes CSIStorageCapacity objects, Resize expands volumes. Both require Provision.
	Capacity, Resize bool
	// Attach processes the driver's VolumeAttachments.
	Attach bool
	// CapacityPeriod is how often the driver's capacity is read again; zero means the default of package capacity.
	CapacityPeriod time.Duration
	// PodNamespace and PodName are those of the Pod that this process runs in. Its controller then owns the
	// CSIStorageCapacity objects. Both are empty outside of a Pod: then the objects are in kube-system, without an owner.
	PodNamespace, PodName string
	// LeaderElection runs the controllers only while this process holds the driver's Lease, which is in
	// LeaderElectionNamespace, or, if that is empty, in the process's own namespace. It requires Provision.
	LeaderElection          bool
	LeaderElectionNamespace string
	// ProvisionOptions are further options of the provision controller.
	ProvisionOptions []provision.Option
}

func (d *Deps) complete(config Config) error {
	switch {
	case d.Client == nil:
		return errors.New("Deps.Client is required")
	case config.Provision && d.Dynamic == nil:
		return errors.New("Deps.Dynamic is required")
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	return nil
}

func (c Config) validate() error {
	switch {
	case c.Driver.Name == "" || c.Driver.Socket == "":
		return errors.New("Config.Driver: Name and Socket are required")
	case !c.Provision && !c.Attach:
		return errors.New("Config.Provision or Config.Attach is required")
	case !c.Provision && (c.Capacity || c.Resize || c.LeaderElection):
		return errors.New("Config.Capacity, Config.Resize and Config.LeaderElection require Config.Provision")
	}
	return nil
}

// Sidecar runs the controllers of one driver.
type Sidecar struct {
	deps   Deps
	config Config
	// provisioner and controller are nil without Config.Provision.
	provisioner *csiprovision.Provisioner
	controller  *provision.ProvisionController
}

// New returns a Sidecar that does nothing before Start.
func New(deps Deps, config Config) (*Sidecar, error) {
	if err := errors.Join(config.validate(), deps.complete(config)); err != nil {
		return nil, fmt.Errorf("csisidecar: %w", err)
	}
	s := &Sidecar{deps: deps, config: config}
	if !config.Provision {
		return s, nil
	}
	var err error
	s.provisioner, err = csiprovision.New(
		csiprovision.Deps{Client: deps.Client, Dynamic: deps.Dynamic, Logger: deps.Logger}, config.Driver)
	if err != nil {
		return nil, err
	}
	options := []provision.Option{
		provision.Logger(deps.Logger), provision.Timeline(deps.Timeline), provision.LeaderElection(config.LeaderElection),
	}
	if config.LeaderElectionNamespace != "" {
		options = append(options, provision.LeaderElectionNamespace(config.LeaderElectionNamespace))
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
		runnables = append(runnables, s.resize)
	}
	return runnables
}

// Start runs the controllers until ctx is done. It may be called once.
func (s *Sidecar) Start(ctx context.Context) error {
	if s.controller == nil {
		return s.attach(ctx)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.provisioner.Start(ctx) })
	group.Go(func() error { return s.controller.RunContext(ctx) })
	return group.Wait()
}

func (s *Sidecar) publishCapacity(ctx context.Context) error {
	config := capacity.Config{
		DriverName: s.config.Driver.Name, Namespace: metav1.NamespaceSystem, Period: s.config.CapacityPeriod,
	}
	if s.config.PodNamespace != "" && s.config.PodName != "" {
		owner, err := capacity.OwnerForPod(ctx, s.deps.Client, s.config.PodNamespace, s.config.PodName)
		if err != nil {
			return err
		}
		config.Namespace, config.Owner = s.config.PodNamespace, owner
	}
	publisher, err := capacity.New(capacity.Deps{
		Client: s.deps.Client, Driver: s.provisioner, Logger: s.deps.Logger, Clock: s.deps.Clock,
	}, config)
	if err != nil {
		return err
	}
	return publisher.Start(ctx)
}

func (s *Sidecar) resize(ctx context.Context) error {
	resizer, err := resize.New(resize.Deps{
		Client: s.deps.Client, Driver: s.provisioner, Timeline: s.deps.Timeline, Logger: s.deps.Logger, Clock: s.deps.Clock,
	}, resize.Config{DriverName: s.config.Driver.Name})
	if err != nil {
		return err
	}
	return resizer.Start(ctx)
}

func (s *Sidecar) attach(ctx context.Context) error {
	conn, err := Dial(s.config.Driver.Socket)
	if err != nil {
		return err
	}
	controller, err := attacher.New(
		attacher.Deps{Client: s.deps.Client, Driver: csi.NewControllerClient(conn), Logger: s.deps.Logger},
		attacher.Config{DriverName: s.config.Driver.Name})
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	return errors.Join(controller.Start(ctx), conn.Close())
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
