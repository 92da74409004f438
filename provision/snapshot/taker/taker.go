package taker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/berth-dev/berth/internal/listwatch"
	"github.com/berth-dev/berth/provision/lifecycle"
	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/shared"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

const (
	// DefaultWorkers is how many snapshots are taken at once.
	DefaultWorkers = 10

	// timelineOwner is the owner of the stages in timelines, and begins the source of the events.
	timelineOwner = "snapshotter"
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
	// Group is the driver's handle of the group snapshot that it is of; "" for none.
	Group string
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

// Driver calls a CSI driver. Its errors have the gRPC status of the driver's response; an error without a status means that
// nothing was sent. The error of a driver without snapshots is shared.ErrUnsupported. It is safe for concurrent use.
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
	*lifecycle.Lifecycle
	deps     Deps
	config   Config
	contents *contents
	taking   *shared.Taking[*api.VolumeSnapshotContent]
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
	t := &Taker{deps: deps, config: config}
	if err := t.build(); err != nil {
		return nil, fmt.Errorf("taker: %w", err)
	}
	return t, nil
}

func (t *Taker) build() error {
	objects := t.deps.Snapshots
	informer := cache.NewSharedIndexInformer(listwatch.New(objects.VolumeSnapshotContents(), objects), &api.VolumeSnapshotContent{}, 0,
		cache.Indexers{})
	var err error
	if t.contents, err = client.New(func(string) api.ContentsClient { return objects.VolumeSnapshotContents() }, informer,
		client.Config[*api.VolumeSnapshotContent]{Resource: api.Resource(api.ResourceContents)}); err != nil {
		return err
	}
	t.taking = &shared.Taking[*api.VolumeSnapshotContent]{
		Writer: shared.NewWriter(api.GroupVersion.WithKind(api.KindContent), t.contents.Patch), Get: t.contents.Get,
		Driver: func(c *api.VolumeSnapshotContent) string { return c.Spec.Driver }, StateOf: stateOf,
		BeingCreated: snapshot.AnnBeingCreated, BeingDeleted: snapshot.AnnBeingDeleted, ReasonDelete: reasonDelete,
		Delete: t.delete, Take: t.take,
		DriverName: t.config.DriverName,
		Reporting: shared.Reporting{
			Recorder: func() record.EventRecorder { return t.Recorder() }, Clock: t.deps.Clock, Logger: t.deps.Logger,
		},
	}
	name := timelineOwner + " of " + t.config.DriverName
	runner, err := controller.New(reconcile.Func(t.taking.Reconcile),
		controller.Deps{Logger: t.deps.Logger, Clock: t.deps.Clock, Registerer: t.deps.Registerer},
		controller.Config{Name: name, Workers: t.config.Workers, BackoffMin: shared.RetryMin, BackoffMax: shared.RetryMax})
	if err != nil {
		return err
	}
	runner.Watch(controller.For(informer, controller.Changed(), t.needsWork))
	t.Lifecycle, err = lifecycle.New(lifecycle.Deps{
		Client: t.deps.Client, Recorder: t.deps.Recorder, Logger: t.deps.Logger, Clock: t.deps.Clock, Runner: runner,
	}, lifecycle.Config{
		Name: name, EventSource: timelineOwner + " " + t.config.DriverName, Informers: []cache.SharedIndexInformer{informer},
		Served: func(ctx context.Context) error {
			return snapshot.WaitServed(ctx, objects, t.deps.Dynamic, t.deps.Logger)
		},
	})
	return err
}

// needsWork accepts events after which there is something to do. That of a member of a group begins with its handle.
func (t *Taker) needsWork(event controller.Event) bool {
	content, ok := event.Object.(*api.VolumeSnapshotContent)
	old, known := event.Old.(*api.VolumeSnapshotContent)
	if ok && known && content.Spec.Driver == t.config.DriverName && snapshot.IsMember(content) && handleOf(old) != handleOf(content) {
		return true
	}
	return t.taking.NeedsWork(event)
}
