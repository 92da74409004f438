package binder

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
	"k8s.io/apimachinery/pkg/types"
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
	// DefaultWorkers is how many VolumeSnapshots are reconciled at once.
	DefaultWorkers = 10

	// eventComponent is the source of the events.
	eventComponent = "snapshot-controller"
	// timelineOwner is the owner of the stages in timelines.
	timelineOwner = "snapshot binder"

	// retryMin and retryMax bound the backoff of a VolumeSnapshot that fails.
	retryMin, retryMax = 100 * time.Millisecond, 5 * time.Minute
)

// Deps are what a Binder works with. Client, Snapshots and Dynamic are required; the others have the usual defaults.
type Deps struct {
	// Client gets and patches claims, watches single ones, gets PersistentVolumes, and writes events.
	Client kubernetes.Interface
	// Snapshots watches and writes VolumeSnapshots and contents, and reads classes.
	Snapshots api.Client
	// Dynamic watches the CustomResourceDefinitions of a cluster that has no VolumeSnapshots yet.
	Dynamic dynamic.Interface
	// Timeline records each step as a stage of the VolumeSnapshot. It may be nil.
	Timeline *timeline.Recorder
	// Recorder records events. The default is a recorder that writes to the API server.
	Recorder record.EventRecorder
	Logger   *slog.Logger
	Clock    clock.WithTicker
	// Registerer registers the metrics of the work queue while the binder runs. By default there are none.
	Registerer prometheus.Registerer
}

// Config is how a Binder works.
type Config struct {
	// Workers is how many VolumeSnapshots are reconciled at once. Default DefaultWorkers.
	Workers int
}

type (
	snapshots = client.Resource[*api.VolumeSnapshot, *api.VolumeSnapshotList, api.SnapshotsClient]
	contents  = client.Resource[*api.VolumeSnapshotContent, *api.VolumeSnapshotContentList,
		api.ContentsClient]
)

// bySnapshot indexes contents by the NAMESPACE/NAME of the VolumeSnapshot that they name.
const bySnapshot = "snapshot"

// byClaim indexes VolumeSnapshots by the NAMESPACE/NAME of their source.
const byClaim = "claim"

// Binder binds the VolumeSnapshots of a cluster. Start runs it, once.
type Binder struct {
	deps      Deps
	snapshots *snapshots
	contents  *contents
	informers []cache.SharedIndexInformer
	runner    *controller.Controller
	waits     *waits
	recorder  record.EventRecorder // set by Start before the first run
	served    atomic.Bool          // the cluster has VolumeSnapshots
}

// New returns a Binder. It starts nothing.
func New(deps Deps, config Config) (*Binder, error) {
	switch {
	case deps.Client == nil:
		return nil, errors.New("binder: Deps.Client is required")
	case deps.Snapshots == nil:
		return nil, errors.New("binder: Deps.Snapshots is required")
	case deps.Dynamic == nil:
		return nil, errors.New("binder: Deps.Dynamic is required")
	}
	if config.Workers <= 0 {
		config.Workers = DefaultWorkers
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	b := &Binder{deps: deps, recorder: deps.Recorder}
	return b, b.build(config)
}

func (b *Binder) build(config Config) error {
	objects := b.deps.Snapshots
	snapshotInformer := cache.NewSharedIndexInformer(listwatch.New(objects.VolumeSnapshots(""), b.deps.Snapshots),
		&api.VolumeSnapshot{}, 0, cache.Indexers{byClaim: func(obj any) ([]string, error) {
			if s, ok := obj.(*api.VolumeSnapshot); ok && s.Spec.Source.ClaimName != nil {
				return []string{s.Namespace + "/" + *s.Spec.Source.ClaimName}, nil
			}
			return nil, nil
		}})
	contentInformer := cache.NewSharedIndexInformer(listwatch.New(objects.VolumeSnapshotContents(), b.deps.Snapshots),
		&api.VolumeSnapshotContent{}, 0, cache.Indexers{bySnapshot: func(obj any) ([]string, error) {
			if c, ok := obj.(*api.VolumeSnapshotContent); ok {
				return []string{c.Spec.SnapshotRef.Namespace + "/" + c.Spec.SnapshotRef.Name}, nil
			}
			return nil, nil
		}})
	b.informers = []cache.SharedIndexInformer{snapshotInformer, contentInformer}
	var err error
	if b.snapshots, err = client.New(objects.VolumeSnapshots, snapshotInformer,
		client.Config[*api.VolumeSnapshot]{Resource: api.Resource("volumesnapshots")}); err != nil {
		return fmt.Errorf("binder: %w", err)
	}
	if b.contents, err = client.New(func(string) api.ContentsClient { return objects.VolumeSnapshotContents() },
		contentInformer, client.Config[*api.VolumeSnapshotContent]{Resource: api.Resource("volumesnapshotcontents")}); err != nil {
		return fmt.Errorf("binder: %w", err)
	}
	b.runner, err = controller.New(reconcile.Func(b.reconcile),
		controller.Deps{Logger: b.deps.Logger, Clock: b.deps.Clock, Registerer: b.deps.Registerer},
		controller.Config{Name: "snapshot binder", Workers: config.Workers, BackoffMin: retryMin, BackoffMax: retryMax})
	if err != nil {
		return fmt.Errorf("binder: %w", err)
	}
	b.waits = newWaits(b.deps, b.runner)
	b.runner.Watch(controller.For(snapshotInformer, controller.Changed()))
	b.runner.Watch(controller.Watches(contentInformer, func(c *api.VolumeSnapshotContent) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{
			Namespace: c.Spec.SnapshotRef.Namespace, Name: c.Spec.SnapshotRef.Name}}}
	}, controller.Changed()))
	return nil
}

// Start binds VolumeSnapshots until ctx ends. In a cluster without them it first waits for their definitions.
func (b *Binder) Start(ctx context.Context) error {
	if err := snapshot.WaitServed(ctx, b.deps.Snapshots, b.deps.Dynamic, b.deps.Logger); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("start snapshot binder: %w", err)
	}
	b.served.Store(true)
	if b.recorder == nil {
		recorder, stop, err := eventsink.StartRecorder(ctx, eventsink.Deps{
			Client: b.deps.Client.CoreV1(), Clock: b.deps.Clock, Logger: b.deps.Logger,
		}, eventsink.Config{}, corev1.EventSource{Component: eventComponent})
		if err != nil {
			return fmt.Errorf("start snapshot binder: %w", err)
		}
		defer stop()
		b.recorder = recorder
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer b.waits.stop()
	defer cancel()
	b.waits.start(ctx)
	for _, informer := range b.informers {
		running.Go(contain.Guard("binder.Start", "", func() { informer.RunWithContext(ctx) }))
	}
	return b.runner.Start(ctx)
}

// Ready returns nil once the caches are filled and the workers run, and as long as the cluster has no VolumeSnapshots.
func (b *Binder) Ready() error {
	if !b.served.Load() {
		return nil
	}
	return b.runner.Ready()
}

// Healthy returns an error while a worker is stuck.
func (b *Binder) Healthy() error { return b.runner.Healthy() }
