package groupbinder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/provision/snapshot/shared"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

const (
	// workers is how many VolumeGroupSnapshots are reconciled at once.
	workers = 4
	// timelineOwner is the owner of the stages in timelines.
	timelineOwner = "group snapshot binder"
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
	*lifecycle.Lifecycle
	deps     Deps
	groups   *groups
	contents *contents
	binding  *shared.Binding[*groupapi.VolumeGroupSnapshot, *groupapi.VolumeGroupSnapshotContent]
	waits    *shared.Waits
	// members has the VolumeSnapshots, and finds those of a group; single patches one, singleContents its content.
	members        cache.SharedIndexInformer
	single         shared.Writer[*api.VolumeSnapshot]
	singleContents shared.Writer[*api.VolumeSnapshotContent]
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
	b := &Binder{deps: deps}
	b.single = shared.NewWriter(api.GroupVersion.WithKind(api.KindSnapshot), directPatch(deps.Snapshots.VolumeSnapshots))
	b.singleContents = shared.NewWriter(api.GroupVersion.WithKind(api.KindContent),
		directPatch(func(string) api.ContentsClient { return deps.Snapshots.VolumeSnapshotContents() }))
	if err := b.build(); err != nil {
		return nil, fmt.Errorf("groupbinder: %w", err)
	}
	return b, nil
}

// directPatch patches by a client that has no cache.
func directPatch[T client.Object, L runtime.Object](in func(namespace string) api.Objects[T, L]) shared.PatchFunc[T] {
	return func(ctx context.Context, namespace, name string, patch client.Patch, options metav1.PatchOptions, subresources ...string) (T, error) {
		return in(namespace).Patch(ctx, name, patch.Type, patch.Data, options, subresources...)
	}
}

func (b *Binder) build() error {
	objects := b.deps.Groups
	groupInformer := cache.NewSharedIndexInformer(listwatch.New(objects.VolumeGroupSnapshots(""), objects), &groupapi.VolumeGroupSnapshot{}, 0,
		cache.Indexers{byExisting: existingGroups})
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
		}, byExisting: possibleMembers})
	var err error
	if b.groups, err = client.New(objects.VolumeGroupSnapshots, groupInformer,
		client.Config[*groupapi.VolumeGroupSnapshot]{Resource: groupapi.Resource(groupapi.ResourceGroups)}); err != nil {
		return err
	}
	if b.contents, err = client.New(func(string) groupapi.ContentsClient { return objects.VolumeGroupSnapshotContents() }, contentInformer,
		client.Config[*groupapi.VolumeGroupSnapshotContent]{Resource: groupapi.Resource(groupapi.ResourceContents)}); err != nil {
		return err
	}
	b.binding = b.newBinding()
	runner, err := controller.New(reconcile.Func(b.binding.Reconcile),
		controller.Deps{Logger: b.deps.Logger, Clock: b.deps.Clock, Registerer: b.deps.Registerer},
		controller.Config{Name: timelineOwner, Workers: workers, BackoffMin: shared.BindMin, BackoffMax: shared.BindMax})
	if err != nil {
		return err
	}
	runner.Watch(controller.For(groupInformer, controller.Changed()))
	runner.Watch(controller.Watches(contentInformer, func(c *groupapi.VolumeGroupSnapshotContent) []reconcile.Request {
		return []reconcile.Request{requestFor(c.Spec.GroupRef.Namespace, c.Spec.GroupRef.Name)}
	}, controller.Changed()))
	runner.Watch(controller.Watches(b.members, func(s *api.VolumeSnapshot) []reconcile.Request {
		return groupsOf(s, groupInformer.GetIndexer())
	}, controller.Changed()))
	b.waits = shared.NewWaits(b.deps.Client, b.deps.Logger, func() cache.SharedInformer {
		return cache.NewSharedInformer(listwatch.New(objects.VolumeGroupSnapshotClasses(), objects), &groupapi.VolumeGroupSnapshotClass{}, 0)
	}, runner.Enqueue)
	return b.buildLifecycle(runner, groupInformer, contentInformer, b.members)
}

func (b *Binder) buildLifecycle(runner *controller.Controller, informers ...cache.SharedIndexInformer) (err error) {
	b.Lifecycle, err = lifecycle.New(lifecycle.Deps{
		Client: b.deps.Client, Recorder: b.deps.Recorder, Logger: b.deps.Logger, Clock: b.deps.Clock, Runner: runner,
	}, lifecycle.Config{
		Name: timelineOwner, EventSource: shared.EventComponent, Informers: informers, Begin: b.waits.Begin,
		Served: func(ctx context.Context) error {
			if err := snapshot.WaitGroupsServed(ctx, b.deps.Groups, b.deps.Dynamic, b.deps.Logger); err != nil {
				return err
			}
			return snapshot.WaitServed(ctx, b.deps.Snapshots, b.deps.Dynamic, b.deps.Logger)
		},
	})
	return err
}

func (b *Binder) newBinding() *shared.Binding[*groupapi.VolumeGroupSnapshot, *groupapi.VolumeGroupSnapshotContent] {
	return &shared.Binding[*groupapi.VolumeGroupSnapshot, *groupapi.VolumeGroupSnapshotContent]{
		Requests: shared.NewWriter(groupapi.GroupVersion.WithKind(groupapi.KindGroup), b.groups.Patch),
		Contents: shared.NewWriter(groupapi.GroupVersion.WithKind(groupapi.KindContent), b.contents.Patch),
		Get:      b.groups.Get,
		Naming: func(ctx context.Context, key reconcile.Request) ([]*groupapi.VolumeGroupSnapshotContent, error) {
			return b.contents.Index(ctx, byGroup, key.Namespace+"/"+key.Name)
		},
		RefOf: func(c *groupapi.VolumeGroupSnapshotContent) *corev1.ObjectReference { return &c.Spec.GroupRef },
		StatusOf: func(g *groupapi.VolumeGroupSnapshot) (*api.Error, bool) {
			if g.Status == nil {
				return nil, false
			}
			return g.Status.Error, ptr.Deref(g.Status.ReadyToUse, false)
		},
		Finalizer: snapshot.FinalizerGroupContent, BeingDeleted: snapshot.AnnGroupBeingDeleted,
		Bind: b.bind, Delete: b.delete, Release: b.deleteOrphans,
		Reporting: shared.Reporting{
			Recorder: func() record.EventRecorder { return b.Recorder() }, Clock: b.deps.Clock, Logger: b.deps.Logger,
		},
		Timeline: b.deps.Timeline, Owner: timelineOwner,
	}
}

func requestFor(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}
