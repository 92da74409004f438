package capacity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/reconcile"
)

const (
	// DefaultPeriod is how often the driver is asked again although nothing was seen to change.
	DefaultPeriod = time.Minute

	labelDriver    = "csi.storage.k8s.io/drivername"
	labelManagedBy = "csi.storage.k8s.io/managed-by"

	workers            = 4
	retryMin, retryMax = time.Second, 5 * time.Minute
	callTimeout        = time.Minute
)

// Driver is asked how much room there is.
type Driver interface {
	// Capacity returns how many bytes of volumes with these StorageClass parameters a place can still take, and the size
	// of the largest one, 0 if that is not known. An empty place means everywhere. The error is errors.ErrUnsupported
	// if the driver cannot tell: then nothing is published.
	Capacity(ctx context.Context, parameters, place map[string]string) (available, largest int64, err error)
}

// Deps are what a Publisher works with. Client and Driver are required; Logger and Clock have the usual defaults.
type Deps struct {
	// Client needs to watch StorageClasses, CSIDrivers, CSINodes, Nodes and PersistentVolumes, and to watch, create, update and
	// delete CSIStorageCapacities in the namespace.
	Client kubernetes.Interface
	Driver Driver
	Logger *slog.Logger
	Clock  clock.WithTicker
}

// Config says what is published where. DriverName and Namespace are required.
type Config struct {
	// DriverName is the driver's name, which StorageClasses name as their provisioner.
	DriverName string
	// Namespace is where the objects are.
	Namespace string
	// ManagedBy tells several publishers of one driver apart, such as one on each node. It is the value of a label:
	// objects with another value are left alone. Default "berth".
	ManagedBy string
	// Owner owns the objects: when it is gone, Kubernetes removes them. Nil: the driver's CSIDriver object does.
	Owner *metav1.OwnerReference
	// Period is how often the driver is asked again although nothing was seen to change. Default DefaultPeriod.
	Period time.Duration
}

// Publisher keeps the objects true. Start runs it, once.
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
}

// New makes a Publisher. It starts nothing.
func New(deps Deps, config Config) (*Publisher, error) {
	switch {
	case deps.Client == nil || deps.Driver == nil:
		return nil, errors.New("make capacity publisher: Deps.Client and Deps.Driver are required")
	case config.DriverName == "" || config.Namespace == "":
		return nil, errors.New("make capacity publisher: Config.DriverName and Config.Namespace are required")
	case config.Period < 0:
		return nil, fmt.Errorf("make capacity publisher: Config.Period %v is negative", config.Period)
	}
	if config.ManagedBy == "" {
		config.ManagedBy = "berth"
	}
	if config.Period == 0 {
		config.Period = DefaultPeriod
	}
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
	p.topologies = newTopologies(config.DriverName,
		p.factory.Storage().V1().CSINodes().Lister(), p.factory.Core().V1().Nodes().Lister())
	return p, p.build()
}

func (p *Publisher) labels() map[string]string {
	return map[string]string{labelDriver: p.config.DriverName, labelManagedBy: p.config.ManagedBy}
}

func (p *Publisher) selector() string {
	return metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: p.labels()})
}

// keyIndex indexes the published objects by what they are about.
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
		return fmt.Errorf("make capacity publisher: index objects: %w", err)
	}
	p.objects = objects.GetIndexer()
	p.runner, err = controller.NewTyped(reconcile.TypedFunc[key](p.reconcile),
		controller.Deps{Logger: p.deps.Logger, Clock: p.deps.Clock},
		controller.Config{Name: "capacity of " + p.config.DriverName, Workers: workers,
			BackoffMin: retryMin, BackoffMax: retryMax, Timeout: callTimeout})
	if err != nil {
		return fmt.Errorf("make capacity publisher: %w", err)
	}
	p.watch(objects)
	return nil
}

// Start publishes until ctx ends. What is published then stays, for the next to take up.
func (p *Publisher) Start(ctx context.Context) error {
	watching, stop := context.WithCancel(ctx)
	defer p.published.Shutdown()
	defer p.factory.Shutdown()
	defer stop()
	p.factory.StartWithContext(watching)
	p.published.StartWithContext(watching)
	return p.runner.Start(ctx)
}
