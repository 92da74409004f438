package capacity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/internal/startonce"
	"github.com/berth-dev/berth/reconcile"
)

const (
	// DefaultPeriod is how often the driver is asked for its capacity although no event came.
	DefaultPeriod = time.Minute

	labelDriver    = "csi.storage.k8s.io/drivername"
	labelManagedBy = "csi.storage.k8s.io/managed-by"

	workers            = 4
	retryMin, retryMax = time.Second, 5 * time.Minute
	callTimeout        = time.Minute
)

// Driver reports its capacity.
type Driver interface {
	// Capacity returns how many bytes of volumes with these StorageClass parameters can still be created in a topology, and
	// the size of the largest volume, nil if that is unknown. An empty topology means everywhere. The error is
	// errors.ErrUnsupported if the driver does not report its capacity: then nothing is published.
	Capacity(ctx context.Context, parameters, topology map[string]string) (available int64, largest *int64, err error)
}

// Deps are what a Publisher works with. Client and Driver are required; the others have the usual defaults.
type Deps struct {
	// Client needs to watch StorageClasses, CSIDrivers, CSINodes, Nodes and PersistentVolumes, and to watch, create, update and
	// delete CSIStorageCapacities in the namespace.
	Client kubernetes.Interface
	Driver Driver
	Logger *slog.Logger
	Clock  clock.WithTicker
	// Registerer registers the metrics of the work queue while the publisher runs. Nil: there are none.
	Registerer prometheus.Registerer
}

// Config is what a Publisher publishes, and where. DriverName and Namespace are required.
type Config struct {
	// DriverName is the driver's name, which StorageClasses name as their provisioner.
	DriverName string
	// Namespace is that of the objects.
	Namespace string
	// ManagedBy distinguishes several publishers of one driver, such as one on each node. It is the value of a label; objects
	// with another value are not touched. Default "berth".
	ManagedBy string
	// NodeName is the node whose topology is published, if there is a publisher on each node. Empty: all topologies are.
	NodeName string
	// Owner is the owner of the objects: when it is deleted, Kubernetes deletes them. Nil: the driver's CSIDriver object.
	Owner *metav1.OwnerReference
	// Period is how often the driver is asked for its capacity although no event came. Default DefaultPeriod.
	Period time.Duration
}

func (d Deps) validate() error {
	switch {
	case d.Client == nil:
		return errors.New("capacity: Deps.Client is required")
	case d.Driver == nil:
		return errors.New("capacity: Deps.Driver is required")
	}
	return nil
}

func (c Config) validate() error {
	switch {
	case c.DriverName == "":
		return errors.New("capacity: Config.DriverName is required")
	case c.Namespace == "":
		return errors.New("capacity: Config.Namespace is required")
	case c.Period < 0:
		return fmt.Errorf("capacity: Config.Period %v is negative", c.Period)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.ManagedBy == "" {
		c.ManagedBy = "berth"
	}
	if c.Period == 0 {
		c.Period = DefaultPeriod
	}
	return c
}

// Publisher keeps the objects up to date. Start runs it, once.
type Publisher struct {
	deps       Deps
	config     Config
	factory    informers.SharedInformerFactory
	published  informers.SharedInformerFactory
	classes    storagelisters.StorageClassLister
	drivers    storagelisters.CSIDriverLister
	objects    cache.Indexer
	topologies *topologies
	runner     *controller.TypedController[key]
	once       startonce.Guard
}

// New returns a Publisher. It starts nothing.
func New(deps Deps, config Config) (*Publisher, error) {
	if err := deps.validate(); err != nil {
		return nil, err
	}
	if err := config.validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	deps.Logger = deps.Logger.With("driver", config.DriverName)
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	p := &Publisher{deps: deps, config: config}
	p.factory = informers.NewSharedInformerFactory(deps.Client, 0)
	p.published = informers.NewSharedInformerFactoryWithOptions(deps.Client, 0, informers.WithNamespace(config.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = p.selector() }))
	p.classes = p.factory.Storage().V1().StorageClasses().Lister()
	p.drivers = p.factory.Storage().V1().CSIDrivers().Lister()
	p.topologies = newTopologies(config.DriverName, config.NodeName,
		p.factory.Storage().V1().CSINodes().Lister(), p.factory.Core().V1().Nodes().Lister())
	return p, p.build()
}

func (p *Publisher) labels() map[string]string {
	return map[string]string{labelDriver: p.config.DriverName, labelManagedBy: p.config.ManagedBy}
}

func (p *Publisher) selector() string {
	return metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: p.labels()})
}

// keyIndex is the index of the published objects by key.
const keyIndex = "key"

func (p *Publisher) build() error {
	objects := p.published.Storage().V1().CSIStorageCapacities().Informer()
	err := objects.AddIndexers(cache.Indexers{keyIndex: func(obj any) ([]string, error) {
		if object, ok := obj.(*storagev1.CSIStorageCapacity); ok {
			return []string{keyOf(object).String()}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return fmt.Errorf("capacity: index objects: %w", err)
	}
	p.objects = objects.GetIndexer()
	p.runner, err = controller.NewTyped(reconcile.TypedFunc[key](p.reconcile),
		controller.Deps{Logger: p.deps.Logger, Clock: p.deps.Clock, Registerer: p.deps.Registerer},
		controller.Config{Name: "capacity of " + p.config.DriverName, Workers: workers,
			BackoffMin: retryMin, BackoffMax: retryMax, Timeout: callTimeout})
	if err != nil {
		return fmt.Errorf("capacity: create controller: %w", err)
	}
	p.watch(objects)
	return nil
}

// Start publishes until ctx ends. The objects stay, for the next process to update.
func (p *Publisher) Start(ctx context.Context) error {
	if err := p.once.Begin("capacity of " + p.config.DriverName); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer p.published.Shutdown()
	defer p.factory.Shutdown()
	defer stop()
	p.factory.StartWithContext(watching)
	p.published.StartWithContext(watching)
	return p.runner.Start(ctx)
}

// RetryNow reads all capacities again: the driver is back, and may be another version.
func (p *Publisher) RetryNow() {
	p.runner.RetryFailed()
	p.runner.Enqueue(p.keysOfTopologies(p.topologies.keys())...)
}

// Ready returns nil once the caches are filled and the workers run.
func (p *Publisher) Ready() error { return p.runner.Ready() }

// Healthy returns an error while a worker is stuck.
func (p *Publisher) Healthy() error { return p.runner.Healthy() }
