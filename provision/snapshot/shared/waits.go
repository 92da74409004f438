package shared

import (
	"context"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/listwatch"
	"github.com/berth-dev/berth/reconcile"
)

// Waits reconciles requests when a claim or a class changes, neither of which is watched otherwise. The watch of claims ends with
// what waits for them, that of classes with the controller.
type Waits struct {
	client  kubernetes.Interface
	logger  *slog.Logger
	classes func() cache.SharedInformer
	enqueue func(keys ...reconcile.Request)

	mu      sync.Mutex // guards all below
	ctx     context.Context
	running sync.WaitGroup
	// claims has the requests that wait for claims.
	claims map[Claims]map[reconcile.Request]struct{}
	// forClass has the requests that wait for a class. Classes are watched from the first one on.
	forClass       map[reconcile.Request]struct{}
	classesWatched bool
}

// Claims selects claims of a namespace: the one of a name, or those that a label selector selects.
type Claims struct {
	Namespace, Name, Labels string
}

// NewWaits returns Waits. classes returns an informer of the classes.
func NewWaits(client kubernetes.Interface, logger *slog.Logger, classes func() cache.SharedInformer, enqueue func(keys ...reconcile.Request)) *Waits {
	return &Waits{
		client: client, logger: logger, classes: classes, enqueue: enqueue,
		claims: map[Claims]map[reconcile.Request]struct{}{}, forClass: map[reconcile.Request]struct{}{},
	}
}

// Begin allows watches until ctx ends. The function that it returns waits until they have ended.
func (w *Waits) Begin(ctx context.Context) (end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ctx = ctx
	return w.running.Wait
}

// ForClaims reconciles key again when one of the claims changes from what version is, or is deleted. An empty version is that of
// claims that do not exist.
func (w *Waits) ForClaims(key reconcile.Request, claims Claims, version string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.claims[claims] != nil {
		w.claims[claims][key] = struct{}{}
		return
	}
	w.claims[claims] = map[reconcile.Request]struct{}{key: {}}
	ctx := w.ctx
	w.running.Go(contain.Guard("shared.watchClaims", claims.Namespace+"/"+claims.Name+claims.Labels, func() {
		w.watchClaims(ctx, claims, version)
		w.mu.Lock()
		keys := w.claims[claims]
		delete(w.claims, claims)
		w.mu.Unlock()
		for waiting := range keys {
			w.enqueue(waiting)
		}
	}))
}

func (w *Waits) watchClaims(ctx context.Context, claims Claims, version string) {
	selected := func(options *metav1.ListOptions) { options.LabelSelector = claims.Labels }
	if claims.Name != "" {
		selected = listwatch.Named(claims.Name)
	}
	lister := listwatch.Select(w.client.CoreV1().PersistentVolumeClaims(claims.Namespace), w.client, selected)
	exists := func(store cache.Store) (bool, error) {
		return version != "" && len(store.ListKeys()) == 0, nil // it was deleted before the watch began
	}
	_, err := watchtools.UntilWithSync(ctx, lister, &corev1.PersistentVolumeClaim{}, exists, func(event watch.Event) (bool, error) {
		now, ok := event.Object.(*corev1.PersistentVolumeClaim)
		return event.Type == watch.Deleted || ok && now.ResourceVersion != version, nil
	})
	if err != nil && ctx.Err() == nil {
		w.logger.Warn("cannot watch claims that a snapshot waits for; its backoff decides", "namespace", claims.Namespace,
			"name", claims.Name, "labels", claims.Labels, "error", err)
	}
}

// ForClass reconciles key again when a class changes.
func (w *Waits) ForClass(key reconcile.Request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forClass[key] = struct{}{}
	if w.classesWatched {
		return
	}
	w.classesWatched = true
	ctx := w.ctx
	w.running.Go(contain.Guard("shared.watchClasses", "", func() {
		informer := w.classes()
		// An informer that does not run yet takes handlers without an error.
		_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { w.classChanged() }, UpdateFunc: func(any, any) { w.classChanged() }, DeleteFunc: func(any) { w.classChanged() },
		})
		informer.RunWithContext(ctx)
	}))
}

func (w *Waits) classChanged() {
	w.mu.Lock()
	keys := w.forClass
	w.forClass = map[reconcile.Request]struct{}{}
	w.mu.Unlock()
	for key := range keys {
		w.enqueue(key)
	}
}
