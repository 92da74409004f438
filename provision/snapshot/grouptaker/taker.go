package grouptaker

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
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/provision/snapshot/shared"
	"github.com/berth-dev/berth/provision/snapshot/taker"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

const (
	// workers is how many groups are taken at once.
	workers = 4

	// timelineOwner is the owner of the stages in timelines, and begins the source of the events.
	timelineOwner = "group snapshotter"
)

// Group is what a driver reports of a group of snapshots.
type Group struct {
	// ID is the driver's handle.
	ID      string
	Created time.Time
	// Ready: volumes can be created from all of the snapshots.
	Ready     bool
	Snapshots []Member
}

// Member is one snapshot of a group.
type Member struct {
	taker.Snapshot
	// Volume is the handle of its source.
	Volume string
}

// CreateRequest is the input of Driver.CreateGroup.
type CreateRequest struct {
	// Name makes the call idempotent.
	Name string
	// Volumes are the handles of the volumes.
	Volumes    []string
	Parameters map[string]string
	Secret     *corev1.SecretReference
}

// Driver calls the group controller service of a CSI driver. Its errors have the gRPC status of the driver's response; an error
// without a status means that nothing was sent. The error of a driver without that service is shared.ErrUnsupported. It is
// safe for concurrent use.
type Driver interface {
	// CreateGroup takes snapshots of all volumes at one moment, or returns the group that has the name.
	CreateGroup(ctx context.Context, request CreateRequest) (Group, error)
	// DeleteGroup deletes a group with its snapshots. It is no error if there is none.
	DeleteGroup(ctx context.Context, id string, snapshots []string, secret *corev1.SecretReference) error
	// GetGroup reads a group.
	GetGroup(ctx context.Context, id string, snapshots []string, secret *corev1.SecretReference) (Group, error)
}

// Deps are what a Taker works with. Client, Groups, Dynamic and Driver are required; the others have the usual defaults.
type Deps struct {
	// Client writes events.
	Client kubernetes.Interface
	// Groups watches and patches contents, and gets classes.
	Groups groupapi.Client
	// Dynamic watches the CustomResourceDefinitions of a cluster that has no VolumeGroupSnapshots yet.
	Dynamic dynamic.Interface
	Driver  Driver
	// Timeline records each call as a stage of the VolumeGroupSnapshot. It may be nil.
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
	// ExtraCreateMetadata adds the names of the VolumeGroupSnapshot and of the content to the parameters of the call.
	ExtraCreateMetadata bool
}

type contents = client.Resource[*groupapi.VolumeGroupSnapshotContent, *groupapi.VolumeGroupSnapshotContentList, groupapi.ContentsClient]

// Taker takes the group snapshots of one driver. Start runs it, once.
type Taker struct {
	*lifecycle.Lifecycle
	deps     Deps
	config   Config
	contents *contents
	taking   *shared.Taking[*groupapi.VolumeGroupSnapshotContent]
}

// New returns a Taker. It starts nothing.
func New(deps Deps, config Config) (*Taker, error) {
	switch {
	case deps.Client == nil || deps.Groups == nil || deps.Dynamic == nil || deps.Driver == nil:
		return nil, errors.New("grouptaker: Deps.Client, Deps.Groups, Deps.Dynamic and Deps.Driver are required")
	case config.DriverName == "":
		return nil, errors.New("grouptaker: Config.DriverName is required")
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
		return nil, fmt.Errorf("grouptaker: %w", err)
	}
	return t, nil
}

func (t *Taker) build() error {
	objects := t.deps.Groups
	informer := cache.NewSharedIndexInformer(listwatch.New(objects.VolumeGroupSnapshotContents(), objects),
		&groupapi.VolumeGroupSnapshotContent{}, 0, cache.Indexers{})
	var err error
	if t.contents, err = client.New(func(string) groupapi.ContentsClient { return objects.VolumeGroupSnapshotContents() }, informer,
		client.Config[*groupapi.VolumeGroupSnapshotContent]{Resource: groupapi.Resource(groupapi.ResourceContents)}); err != nil {
		return err
	}
	t.taking = &shared.Taking[*groupapi.VolumeGroupSnapshotContent]{
		Writer: shared.NewWriter(groupapi.GroupVersion.WithKind(groupapi.KindContent), t.contents.Patch), Get: t.contents.Get,
		Driver: func(c *groupapi.VolumeGroupSnapshotContent) string { return c.Spec.Driver }, StateOf: stateOf,
		BeingCreated: snapshot.AnnGroupBeingCreated, BeingDeleted: snapshot.AnnGroupBeingDeleted, ReasonDelete: reasonDelete,
		Delete: t.delete, Take: t.take,
		DriverName: t.config.DriverName,
		Reporting: shared.Reporting{
			Recorder: func() record.EventRecorder { return t.Recorder() }, Clock: t.deps.Clock, Logger: t.deps.Logger,
		},
	}
	name := timelineOwner + " of " + t.config.DriverName
	runner, err := controller.New(reconcile.Func(t.taking.Reconcile),
		controller.Deps{Logger: t.deps.Logger, Clock: t.deps.Clock, Registerer: t.deps.Registerer},
		controller.Config{Name: name, Workers: workers, BackoffMin: shared.RetryMin, BackoffMax: shared.RetryMax})
	if err != nil {
		return err
	}
	runner.Watch(controller.For(informer, controller.Changed(), t.taking.NeedsWork))
	t.Lifecycle, err = lifecycle.New(lifecycle.Deps{
		Client: t.deps.Client, Recorder: t.deps.Recorder, Logger: t.deps.Logger, Clock: t.deps.Clock, Runner: runner,
	}, lifecycle.Config{
		Name: name, EventSource: timelineOwner + " " + t.config.DriverName, Informers: []cache.SharedIndexInformer{informer},
		Served: func(ctx context.Context) error {
			return snapshot.WaitGroupsServed(ctx, objects, t.deps.Dynamic, t.deps.Logger)
		},
	})
	return err
}
