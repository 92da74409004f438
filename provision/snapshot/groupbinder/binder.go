package groupbinder

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
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

const (
	// workers is how many VolumeGroupSnapshots are reconciled at once.
	workers = 4

	// eventComponent is the source of the events.
	eventComponent = "snapshot-controller"
	// timelineOwner is the owner of the stages in timelines.
	timelineOwner = "group snapshot binder"

	// retryMin and retryMax bound the backoff of a VolumeGroupSnapshot that fails.
	retryMin, retryMax = 100 * time.Millisecond, 5 * time.Minute
)

// Deps are what a Binder works with. Client, Groups, Snapshots and Dynamic are required; the others have the usual defaults.
type Deps struct {
	// Client lists claims, gets PersistentVolumes, and writes events.
	Client kubernetes.Interface
	// Groups watches and writes VolumeGroupSnapshots and contents, and reads classes.
	Groups groupapi.Client
	// Snapshots watches, creates, patches and deletes VolumeSnapshots and contents.
	Snapshots api.Client
	// Dynamic watches the CustomResourceDefinitions of a cluster that has no VolumeGroupSnapshots yet.
	Dynamic dynamic.Interface
	// Timeline records each step as a stage of the VolumeGroupSnapshot. It may be nil.
	Timeline *timeline.Recorder
	// Recorder records events. The default is a recorder that writes to the API server.
	Recorder record.EventRecorder
	Logger   *slog.Logger
	Clock    clock.WithTicker
	// Registerer registers the metrics of the work queue while the binder runs. By default there are none.
	Registerer prometheus.Registerer
}

type (
	groups   = client.Resource[*groupapi.VolumeGroupSnapshot, *groupapi.VolumeGroupSnapshotList, groupapi.GroupsClient]
	contents = client.Resource[*groupapi.VolumeGroupSnapshotContent, *groupapi.VolumeGroupSnapshotContentList, groupapi.ContentsClient]
)

// byGroup indexes contents by the NAMESPACE/NAME of the VolumeGroupSnapshot that they name, and VolumeSnapshots by that of the
// one that owns them.
const byGroup = "group"

// Binder binds the VolumeGroupSnapshots of a cluster. Start runs it, once.
type Binder struct {
	deps     Deps
	groups   *groups
	contents *contents
	// members has the VolumeSnapshots of groups only.
	members   cache.SharedIndexInformer
	informers []cache.SharedIndexInformer
	runner    *controller.Controller
	recorder  record.EventRecorder // set by Start before the first run
	served    atomic.Bool          // the cluster has VolumeGroupSnapshots
}

// New returns a Binder. It starts nothing.
func New(deps Deps) (*Binder, error) {
	if deps.Client == nil || deps.Groups == nil || deps.Snapshots == nil || deps.Dynamic == nil {
		return nil, errors.New("groupbinder: Deps.Client, Deps.Groups, Deps.Snapshots and Deps.Dynamic are required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	b := &Binder{deps: deps, recorder: deps.Recorder}
	return b, b.build()
}

func (b *Binder) build() error {
	objects := b.deps.Groups
	groupInformer := cache.NewSharedIndexInformer(listwatch.New(objects.VolumeGroupSnapshots(""), objects), &groupapi.VolumeGroupSnapshot{}, 0,
		cache.Indexers{})
	contentInformer := cache.NewSharedIndexInformer(listwatch.New(objects.VolumeGroupSnapshotContents(), objects),
		&groupapi.VolumeGroupSnapshotContent{}, 0, cache.Indexers{byGroup: func(obj any) ([]string, error) {
			if c, ok := obj.(*groupapi.VolumeGroupSnapshotContent); ok {
				return []string{c.Spec.GroupRef.Namespace + "/" + c.Spec.GroupRef.Name}, nil
			}
			return nil, nil
		}})
	b.members = cache.NewSharedIndexInformer(listwatch.New(b.deps.Snapshots.VolumeSnapshots(""), b.deps.Snapshots), &api.VolumeSnapshot{}, 0,
		cache.Indexers{byGroup: func(obj any) ([]string, error) {
			if s, ok := obj.(*api.VolumeSnapshot); ok && snapshot.GroupOf(s) != nil {
				return []string{s.Namespace + "/" + snapshot.GroupOf(s).Name}, nil
			}
			return nil, nil
		}})
	b.informers = []cache.SharedIndexInformer{groupInformer, contentInformer, b.members}
	var err error
	if b.groups, err = client.New(objects.VolumeGroupSnapshots, groupInformer,
		client.Config[*groupapi.VolumeGroupSnapshot]{Resource: groupapi.Resource(groupapi.ResourceGroups)}); err != nil {
		return fmt.Errorf("groupbinder: %w", err)
	}
	if b.contents, err = client.New(func(string) groupapi.ContentsClient { return objects.VolumeGroupSnapshotContents() }, contentInformer,
		client.Config[*groupapi.VolumeGroupSnapshotContent]{Resource: groupapi.Resource(groupapi.ResourceContents)}); err != nil {
		return fmt.Errorf("groupbinder: %w", err)
	}
	b.runner, err = controller.New(reconcile.Func(b.reconcile),
		controller.Deps{Logger: b.deps.Logger, Clock: b.deps.Clock, Registerer: b.deps.Registerer},
		controller.Config{Name: "group snapshot binder", Workers: workers, BackoffMin: retryMin, BackoffMax: retryMax})
	if err != nil {
		return fmt.Errorf("groupbinder: %w", err)
	}
	b.runner.Watch(controller.For(groupInformer, controller.Changed()))
	b.runner.Watch(controller.Watches(contentInformer, func(c *groupapi.VolumeGroupSnapshotContent) []reconcile.Request {
		return []reconcile.Request{requestFor(c.Spec.GroupRef.Namespace, c.Spec.GroupRef.Name)}
	}, controller.Changed()))
	b.runner.Watch(controller.Watches(b.members, func(s *api.VolumeSnapshot) []reconcile.Request {
		if owner := snapshot.GroupOf(s); owner != nil {
			return []reconcile.Request{requestFor(s.Namespace, owner.Name)}
		}
		return nil
	}, controller.Changed()))
	return nil
}

func requestFor(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// Start binds VolumeGroupSnapshots until ctx ends. In a cluster without them it first waits for their definitions.
func (b *Binder) Start(ctx context.Context) error {
	err := snapshot.WaitGroupsServed(ctx, b.deps.Groups, b.deps.Dynamic, b.deps.Logger)
	if err == nil {
		err = snapshot.WaitServed(ctx, b.deps.Snapshots, b.deps.Dynamic, b.deps.Logger)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("start group snapshot binder: %w", err)
	}
	b.served.Store(true)
	if b.recorder == nil {
		recorder, stop, err := eventsink.StartRecorder(ctx, eventsink.Deps{
			Client: b.deps.Client.CoreV1(), Clock: b.deps.Clock, Logger: b.deps.Logger,
		}, eventsink.Config{}, corev1.EventSource{Component: eventComponent})
		if err != nil {
			return fmt.Errorf("start group snapshot binder: %w", err)
		}
		defer stop()
		b.recorder = recorder
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, informer := range b.informers {
		running.Go(contain.Guard("groupbinder.Start", "", func() { informer.RunWithContext(ctx) }))
	}
	return b.runner.Start(ctx)
}

// Ready returns nil once the caches are filled and the workers run, and as long as the cluster has no VolumeGroupSnapshots.
func (b *Binder) Ready() error {
	if !b.served.Load() {
		return nil
	}
	return b.runner.Ready()
}

// Healthy returns an error while a worker is stuck.
func (b *Binder) Healthy() error { return b.runner.Healthy() }
