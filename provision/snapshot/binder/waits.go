package binder

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/listwatch"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/reconcile"
)

// waits reconciles VolumeSnapshots when an object changes that is not watched otherwise. Each watch ends with what it
// waited for.
type waits struct {
	deps   Deps
	runner *controller.Controller

	mu      sync.Mutex // guards all below
	ctx     context.Context
	running sync.WaitGroup
	// claims has the VolumeSnapshots that wait for a claim, by the claim.
	claims map[types.NamespacedName]map[reconcile.Request]struct{}
	// classes has the VolumeSnapshots that wait for a class. Classes are watched from the first one on.
	classes        map[reconcile.Request]struct{}
	classesWatched bool
}

func newWaits(deps Deps, runner *controller.Controller) *waits {
	return &waits{
		deps: deps, runner: runner,
		claims: map[types.NamespacedName]map[reconcile.Request]struct{}{}, classes: map[reconcile.Request]struct{}{},
	}
}

func (w *waits) start(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ctx = ctx
}

// stop waits for the watches, whose context has ended.
func (w *waits) stop() { w.running.Wait() }

// forClaim reconciles key again when the claim changes from what version is, or is deleted. An empty version is that of a
// claim that does not exist.
func (w *waits) forClaim(key reconcile.Request, claim types.NamespacedName, version string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.claims[claim] != nil {
		w.claims[claim][key] = struct{}{}
		return
	}
	w.claims[claim] = map[reconcile.Request]struct{}{key: {}}
	ctx := w.ctx
	w.running.Go(contain.Guard("binder.watchClaim", claim.String(), func() {
		w.watchClaim(ctx, claim, version)
		w.mu.Lock()
		keys := w.claims[claim]
		delete(w.claims, claim)
		w.mu.Unlock()
		for waiting := range keys {
			w.runner.Enqueue(waiting)
		}
	}))
}

func (w *waits) watchClaim(ctx context.Context, claim types.NamespacedName, version string) {
	lister := listwatch.Select(w.deps.Client.CoreV1().PersistentVolumeClaims(claim.Namespace), w.deps.Client, listwatch.Named(claim.Name))
	exists := func(store cache.Store) (bool, error) {
		return version != "" && len(store.ListKeys()) == 0, nil // it was deleted before the watch began
	}
	_, err := watchtools.UntilWithSync(ctx, lister, &corev1.PersistentVolumeClaim{}, exists, func(event watch.Event) (bool, error) {
		now, ok := event.Object.(*corev1.PersistentVolumeClaim)
		return event.Type == watch.Deleted || ok && now.ResourceVersion != version, nil
	})
	if err != nil && ctx.Err() == nil {
		w.deps.Logger.Warn("cannot watch a claim that a VolumeSnapshot waits for; its backoff decides", "claim", claim.String(), "error", err)
	}
}

// forClass reconciles key again when a VolumeSnapshotClass changes.
func (w *waits) forClass(key reconcile.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.classes[key] = struct{}{}
	if w.classesWatched {
		return
	}
	w.classesWatched = true
	ctx := w.ctx
	w.running.Go(contain.Guard("binder.watchClasses", "", func() {
		informer := cache.NewSharedInformer(listwatch.New(w.deps.Snapshots.VolumeSnapshotClasses(), w.deps.Snapshots),
			&api.VolumeSnapshotClass{}, 0)
		// An informer that does not run yet takes handlers without an error.
		_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { w.classChanged() }, UpdateFunc: func(any, any) { w.classChanged() }, DeleteFunc: func(any) { w.classChanged() },
		})
		informer.RunWithContext(ctx)
	}))
}

func (w *waits) classChanged() {
	w.mu.Lock()
	keys := w.classes
	w.classes = map[reconcile.Request]struct{}{}
	w.mu.Unlock()
	for key := range keys {
		w.runner.Enqueue(key)
	}
}
