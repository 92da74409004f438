package binder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

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
	// DefaultWorkers is how many VolumeSnapshots are reconciled at once.
	DefaultWorkers = 10
	// timelineOwner is the owner of the stages in timelines.
	timelineOwner = "snapshot binder"
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
	*lifecycle.Lifecycle
	deps      Deps
	snapshots *snapshots
	contents  *contents
	binding   *shared.Binding[*api.VolumeSnapshot, *api.VolumeSnapshotContent]
	waits     *shared.Waits
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
	b := &Binder{deps: deps}
	if err := b.build(config); err != nil {
		return nil, fmt.Errorf("binder: %w", err)
	}
	return b, nil
}

func (b *Binder) build(config Config) error {
	objects := b.deps.Snapshots
	snapshotInformer := cache.NewSharedIndexInformer(listwatch.New(objects.VolumeSnapshots(""), objects),
		&api.VolumeSnapshot{}, 0, cache.Indexers{byClaim: func(obj any) ([]string, error) {
			if s, ok := obj.(*api.VolumeSnapshot); ok && s.Spec.Source.ClaimName != nil {
				return []string{s.Namespace + "/" + *s.Spec.Source.ClaimName}, nil
			}
			return nil, nil
		}})
	contentInformer := cache.NewSharedIndexInformer(listwatch.New(objects.VolumeSnapshotContents(), objects),
		&api.VolumeSnapshotContent{}, 0, cache.Indexers{bySnapshot: func(obj any) ([]string, error) {
			if c, ok := obj.(*api.VolumeSnapshotContent); ok {
				return []string{c.Spec.SnapshotRef.Namespace + "/" + c.Spec.SnapshotRef.Name}, nil
			}
			return nil, nil
		}})
	var err error
	if b.snapshots, err = client.New(objects.VolumeSnapshots, snapshotInformer,
		client.Config[*api.VolumeSnapshot]{Resource: api.Resource(api.ResourceSnapshots)}); err != nil {
		return err
	}
	if b.contents, err = client.New(func(string) api.ContentsClient { return objects.VolumeSnapshotContents() },
		contentInformer, client.Config[*api.VolumeSnapshotContent]{Resource: api.Resource(api.ResourceContents)}); err != nil {
		return err
	}
	b.binding = b.newBinding()
	runner, err := controller.New(reconcile.Func(b.binding.Reconcile),
		controller.Deps{Logger: b.deps.Logger, Clock: b.deps.Clock, Registerer: b.deps.Registerer},
		controller.Config{Name: timelineOwner, Workers: config.Workers, BackoffMin: shared.BindMin, BackoffMax: shared.BindMax})
	if err != nil {
		return err
	}
	runner.Watch(controller.For(snapshotInformer, controller.Changed()))
	runner.Watch(controller.Watches(contentInformer, func(c *api.VolumeSnapshotContent) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{
			Namespace: c.Spec.SnapshotRef.Namespace, Name: c.Spec.SnapshotRef.Name}}}
	}, controller.Changed()))
	b.waits = shared.NewWaits(b.deps.Client, b.deps.Logger, func() cache.SharedInformer {
		return cache.NewSharedInformer(listwatch.New(objects.VolumeSnapshotClasses(), objects), &api.VolumeSnapshotClass{}, 0)
	}, runner.Enqueue)
	b.Lifecycle, err = lifecycle.New(lifecycle.Deps{
		Client: b.deps.Client, Recorder: b.deps.Recorder, Logger: b.deps.Logger, Clock: b.deps.Clock, Runner: runner,
	}, lifecycle.Config{
		Name: timelineOwner, EventSource: shared.EventComponent, Informers: []cache.SharedIndexInformer{snapshotInformer, contentInformer},
		Begin: b.waits.Begin,
		Served: func(ctx context.Context) error {
			return snapshot.WaitServed(ctx, objects, b.deps.Dynamic, b.deps.Logger)
		},
	})
	return err
}

func (b *Binder) newBinding() *shared.Binding[*api.VolumeSnapshot, *api.VolumeSnapshotContent] {
	return &shared.Binding[*api.VolumeSnapshot, *api.VolumeSnapshotContent]{
		Requests: shared.NewWriter(api.GroupVersion.WithKind(api.KindSnapshot), b.snapshots.Patch),
		Contents: shared.NewWriter(api.GroupVersion.WithKind(api.KindContent), b.contents.Patch),
		Get:      b.snapshots.Get,
		Naming: func(ctx context.Context, key reconcile.Request) ([]*api.VolumeSnapshotContent, error) {
			return b.contents.Index(ctx, bySnapshot, key.Namespace+"/"+key.Name)
		},
		RefOf: func(c *api.VolumeSnapshotContent) *corev1.ObjectReference { return &c.Spec.SnapshotRef },
		StatusOf: func(s *api.VolumeSnapshot) (*api.Error, bool) {
			if s.Status == nil {
				return nil, false
			}
			return s.Status.Error, ptr.Deref(s.Status.ReadyToUse, false)
		},
		Finalizer: snapshot.FinalizerContent, BeingDeleted: snapshot.AnnBeingDeleted,
		Bind: b.bind, Delete: b.delete,
		Reporting: shared.Reporting{
			Recorder: func() record.EventRecorder { return b.Recorder() }, Clock: b.deps.Clock, Logger: b.deps.Logger,
		},
		Timeline: b.deps.Timeline, Owner: timelineOwner,
	}
}
