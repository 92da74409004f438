package grouptaker

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
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/provision/snapshot/taker"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

const (
	// workers is how many groups are taken at once.
	workers = 4

	// timelineOwner is the owner of the stages in timelines, and begins the source of the events.
	timelineOwner = "group snapshotter"

	// retryMin and retryMax bound the backoff of a content that fails.
	retryMin, retryMax = time.Second, 5 * time.Minute
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
// without a status means that nothing was sent. The error of a driver without that service is taker.ErrUnsupported. It is
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
	deps     Deps
	config   Config
	contents *contents
	informer cache.SharedIndexInformer
	runner   *controller.Controller
	recorder record.EventRecorder // set by Start before the first run
	served   atomic.Bool          // the cluster has VolumeGroupSnapshots

	mu sync.Mutex // guards polls
	// polls counts how often a group that is not ready was read.
	polls map[reconcile.Request]int
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
	t := &Taker{deps: deps, config: config, recorder: deps.Recorder, polls: map[reconcile.Request]int{}}
	return t, t.build()
}

func (t *Taker) build() error {
	objects := t.deps.Groups
	t.informer = cache.NewSharedIndexInformer(listwatch.New(objects.VolumeGroupSnapshotContents(), objects),
		&groupapi.VolumeGroupSnapshotContent{}, 0, cache.Indexers{})
	var err error
	if t.contents, err = client.New(func(string) groupapi.ContentsClient { return objects.VolumeGroupSnapshotContents() }, t.informer,
		client.Config[*groupapi.VolumeGroupSnapshotContent]{Resource: groupapi.Resource(groupapi.ResourceContents)}); err != nil {
		return fmt.Errorf("grouptaker: %w", err)
	}
	t.runner, err = controller.New(reconcile.Func(t.reconcile),
		controller.Deps{Logger: t.deps.Logger, Clock: t.deps.Clock, Registerer: t.deps.Registerer},
		controller.Config{Name: "group snapshotter of " + t.config.DriverName, Workers: workers, BackoffMin: retryMin, BackoffMax: retryMax})
	if err != nil {
		return fmt.Errorf("grouptaker: %w", err)
	}
	t.runner.Watch(controller.For(t.informer, controller.Changed(), t.needsWork))
	return nil
}

// needsWork accepts events after which there is something to do. Most changes of a content are the taker's own writes, which
// must not end its backoff.
func (t *Taker) needsWork(event controller.Event) bool {
	content, ok := event.Object.(*groupapi.VolumeGroupSnapshotContent)
	if !ok || content.Spec.Driver != t.config.DriverName {
		return false
	}
	old, known := event.Old.(*groupapi.VolumeGroupSnapshotContent)
	if event.Type != controller.Updated || !known || old.UID != content.UID {
		return true
	}
	marked := func(c *groupapi.VolumeGroupSnapshotContent) bool {
		return c.Annotations[snapshot.AnnGroupBeingDeleted] != ""
	}
	return old.Generation != content.Generation || (old.DeletionTimestamp == nil) != (content.DeletionTimestamp == nil) ||
		marked(old) != marked(content)
}

// Start takes group snapshots until ctx ends, and returns when no call of the driver runs any more. In a cluster without
// VolumeGroupSnapshots it first waits for their definitions.
func (t *Taker) Start(ctx context.Context) error {
	if err := snapshot.WaitGroupsServed(ctx, t.deps.Groups, t.deps.Dynamic, t.deps.Logger); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("start group snapshotter of driver %q: %w", t.config.DriverName, err)
	}
	t.served.Store(true)
	if t.recorder == nil {
		recorder, stop, err := eventsink.StartRecorder(ctx, eventsink.Deps{
			Client: t.deps.Client.CoreV1(), Clock: t.deps.Clock, Logger: t.deps.Logger,
		}, eventsink.Config{}, corev1.EventSource{Component: timelineOwner + " " + t.config.DriverName})
		if err != nil {
			return fmt.Errorf("start group snapshotter of driver %q: %w", t.config.DriverName, err)
		}
		defer stop()
		t.recorder = recorder
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(contain.Guard("grouptaker.Start", "", func() { t.informer.RunWithContext(ctx) }))
	return t.runner.Start(ctx)
}

// RetryNow retries all that wait for the delay after a failure at once, because the driver is back.
func (t *Taker) RetryNow() { t.runner.RetryFailed() }

// Ready returns nil once the cache is filled and the workers run, and as long as the cluster has no VolumeGroupSnapshots.
func (t *Taker) Ready() error {
	if !t.served.Load() {
		return nil
	}
	return t.runner.Ready()
}

// Healthy returns an error while a worker is stuck.
func (t *Taker) Healthy() error { return t.runner.Healthy() }
