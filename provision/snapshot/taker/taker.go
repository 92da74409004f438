package taker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/eventsink"
	"github.com/berth-dev/berth/internal/listwatch"
	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

const (
	// DefaultWorkers is how many snapshots are taken at once.
	DefaultWorkers = 10

	// timelineOwner is the owner of the stages in timelines, and begins the source of the events.
	timelineOwner = "snapshotter"

	// retryMin and retryMax bound the backoff of a content that fails.
	retryMin, retryMax = time.Second, 5 * time.Minute
)

// Snapshot is what a driver reports of a snapshot.
type Snapshot struct {
	// ID is the driver's handle.
	ID      string
	Created time.Time
	// Size is the least size of a volume that is created from it, in bytes; 0 if the driver does not know.
	Size int64
	// Ready: volumes can be created from it.
	Ready bool
}

// CreateRequest is the input of Driver.CreateSnapshot.
type CreateRequest struct {
	// Name makes the call idempotent.
	Name string
	// Volume is the handle of the volume.
	Volume     string
	Parameters map[string]string
	Secret     *corev1.SecretReference
}

// ErrUnsupported is the error of a Driver that does not support snapshots.
var ErrUnsupported = errors.New("the driver does not support snapshots")

// ErrGroupsUnsupported is ErrUnsupported of a driver that takes no group snapshots.
var ErrGroupsUnsupported = fmt.Errorf("%w of groups: it has no group controller service that takes them", ErrUnsupported)

// Driver calls a CSI driver. Its errors have the gRPC status of the driver's response; an error without a status means that
// nothing was sent. It is safe for concurrent use.
type Driver interface {
	// CreateSnapshot takes a snapshot, or returns the one that has the name.
	CreateSnapshot(ctx context.Context, request CreateRequest) (Snapshot, error)
	// DeleteSnapshot deletes a snapshot. It is no error if there is none.
	DeleteSnapshot(ctx context.Context, id string, secret *corev1.SecretReference) error
	// GetSnapshot reads a snapshot. A driver that cannot read snapshots reports one that is ready, without time and size.
	GetSnapshot(ctx context.Context, id string, secret *corev1.SecretReference) (Snapshot, error)
}

// Deps are what a Taker works with. Client, Snapshots, Dynamic and Driver are required; the others have the usual defaults.
type Deps struct {
	// Client writes events.
	Client kubernetes.Interface
	// Snapshots watches and patches contents, and gets classes.
	Snapshots api.Client
	// Dynamic watches the CustomResourceDefinitions of a cluster that has no VolumeSnapshots yet.
	Dynamic dynamic.Interface
	Driver  Driver
	// Timeline records each call as a stage of the VolumeSnapshot. It may be nil.
	Timeline *timeline.Recorder
	// Recorder records events. The default is a recorder that writes to the API server.
	Recorder record.EventRecorder
	Logger   *slog.Logger
	Clock    clock.WithTicker
	// Registerer registers the metrics of the work queue while the taker runs. By default there are none.
	Registerer prometheus.Registerer
}

// Config is how a Taker works. DriverName is required.
type Config struct {
	// DriverName is the name of the driver whose snapshots are taken.
	DriverName string
	// ExtraCreateMetadata adds the names of the VolumeSnapshot and of the content to the parameters of CreateSnapshot.
	ExtraCreateMetadata bool
	// Workers is how many snapshots are taken at once. Default DefaultWorkers.
	Workers int
}

type contents = client.Resource[*api.VolumeSnapshotContent, *api.VolumeSnapshotContentList, api.ContentsClient]

// Taker takes the snapshots of one driver. Start runs it, once.
type Taker struct {
	deps     Deps
	config   Config
	contents *contents
	informer cache.SharedIndexInformer
	runner   *controller.Controller
	recorder record.EventRecorder // set by Start before the first run
	served   atomic.Bool          // the cluster has VolumeSnapshots

	mu sync.Mutex // guards polls
	// polls counts how often a snapshot that is not ready was read.
	polls map[reconcile.Request]int
}

// New returns a Taker. It starts nothing.
func New(deps Deps, config Config) (*Taker, error) {
	switch {
	case deps.Client == nil || deps.Snapshots == nil || deps.Dynamic == nil || deps.Driver == nil:
		return nil, errors.New("taker: Deps.Client, Deps.Snapshots, Deps.Dynamic and Deps.Driver are required")
	case config.DriverName == "":
		return nil, errors.New("taker: Config.DriverName is required")
	}
	if config.Workers <= 0 {
		config.Workers = DefaultWorkers
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	deps.Logger = deps.Logger.With("driver", config.DriverName)
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	t := &Taker{deps: deps, config: config, recorder: deps.Recorder, polls: map[reconcile.Request]int{}}
	return t, t.build()
}

func (t *Taker) build() error {
	objects := t.deps.Snapshots
	t.informer = cache.NewSharedIndexInformer(listwatch.New(objects.VolumeSnapshotContents(), objects), &api.VolumeSnapshotContent{}, 0,
		cache.Indexers{})
	var err error
	if t.contents, err = client.New(func(string) api.ContentsClient { return objects.VolumeSnapshotContents() }, t.informer,
		client.Config[*api.VolumeSnapshotContent]{Resource: api.Resource(api.ResourceContents)}); err != nil {
		return fmt.Errorf("taker: %w", err)
	}
	t.runner, err = controller.New(reconcile.Func(t.reconcile),
		controller.Deps{Logger: t.deps.Logger, Clock: t.deps.Clock, Registerer: t.deps.Registerer},
		controller.Config{Name: "snapshotter of " + t.config.DriverName, Workers: t.config.Workers, BackoffMin: retryMin, BackoffMax: retryMax})
	if err != nil {
		return fmt.Errorf("taker: %w", err)
	}
	t.runner.Watch(controller.For(t.informer, controller.Changed(), t.needsWork))
	return nil
}

// needsWork accepts events after which there is something to do. Most changes of a content are the taker's own writes, which
// must not end its backoff.
func (t *Taker) needsWork(event controller.Event) bool {
	content, ok := event.Object.(*api.VolumeSnapshotContent)
	if !ok || content.Spec.Driver != t.config.DriverName {
		return false
	}
	old, known := event.Old.(*api.VolumeSnapshotContent)
	if event.Type != controller.Updated || !known || old.UID != content.UID {
		return true
	}
	marked := func(c *api.VolumeSnapshotContent) bool { return c.Annotations[snapshot.AnnBeingDeleted] != "" }
	if snapshot.IsMember(content) && handleOf(old) != handleOf(content) {
		return true
	}
	return old.Generation != content.Generation || (old.DeletionTimestamp == nil) != (content.DeletionTimestamp == nil) ||
		marked(old) != marked(content)
}

// Start takes snapshots until ctx ends, and returns when no call of the driver runs any more. In a cluster without
// VolumeSnapshots it first waits for their definitions.
func (t *Taker) Start(ctx context.Context) error {
	if err := snapshot.WaitServed(ctx, t.deps.Snapshots, t.deps.Dynamic, t.deps.Logger); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("start snapshotter of driver %q: %w", t.config.DriverName, err)
	}
	t.served.Store(true)
	if t.recorder == nil {
		recorder, stop, err := eventsink.StartRecorder(ctx, eventsink.Deps{
			Client: t.deps.Client.CoreV1(), Clock: t.deps.Clock, Logger: t.deps.Logger,
		}, eventsink.Config{}, corev1.EventSource{Component: timelineOwner + " " + t.config.DriverName})
		if err != nil {
			return fmt.Errorf("start snapshotter of driver %q: %w", t.config.DriverName, err)
		}
		defer stop()
		t.recorder = recorder
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(contain.Guard("taker.Start", "", func() { t.informer.RunWithContext(ctx) }))
	return t.runner.Start(ctx)
}

// RetryNow retries all that wait for the delay after a failure at once, because the driver is back.
func (t *Taker) RetryNow() { t.runner.RetryFailed() }

// Ready returns nil once the cache is filled and the workers run, and as long as the cluster has no VolumeSnapshots.
func (t *Taker) Ready() error {
	if !t.served.Load() {
		return nil
	}
	return t.runner.Ready()
}

// Healthy returns an error while a worker is stuck.
func (t *Taker) Healthy() error { return t.runner.Healthy() }
