package runtime

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	crcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	crhandler "sigs.k8s.io/controller-runtime/pkg/handler"
	crreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"
	crsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/reconcile"
)

// key names an object to reconcile, in every engine.
type key = types.NamespacedName

// enqueuer takes keys while an engine runs. It is safe for concurrent use.
type enqueuer interface {
	// live adds a key because something happened.
	live(key)
	// background adds a key of an initial list.
	background(key)
	// flush returns once the keys added before it are in their place in the queue.
	flush()
}

// work is what an engine runs.
type work struct {
	workers int
	// started is called once, before any key is reconciled, with the way to add keys.
	started func(context.Context, enqueuer)
	// reconcile handles a key.
	reconcile func(context.Context, key) error
}

// engine runs work until ctx ends.
type engine func(ctx context.Context, w work) error

// runBerth is ours, with its metrics on as controller-runtime's are.
func runBerth(ctx context.Context, w work) error {
	reconciler := reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
		return reconcile.Result{}, w.reconcile(ctx, r.NamespacedName)
	})
	c, err := controller.New(reconciler,
		controller.Deps{Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Registerer: prometheus.NewRegistry()},
		controller.Config{Name: "bench", Workers: w.workers})
	if err != nil {
		return fmt.Errorf("make controller: %w", err)
	}
	c.Watch(berthSource{w.started})
	return c.Start(ctx)
}

// berthSource gives a work its sink.
type berthSource struct {
	started func(context.Context, enqueuer)
}

// Name implements controller.Source.
func (berthSource) Name() string { return "bench" }

// Run implements controller.Source.
func (s berthSource) Run(ctx context.Context, to controller.Enqueuer[reconcile.Request], synced func()) error {
	s.started(ctx, berthEnqueuer{to})
	synced()
	<-ctx.Done()
	return nil
}

type berthEnqueuer struct {
	to controller.Enqueuer[reconcile.Request]
}

func (s berthEnqueuer) live(k key)       { s.to.Add(reconcile.Request{NamespacedName: k}) }
func (s berthEnqueuer) background(k key) { s.to.AddBackground(reconcile.Request{NamespacedName: k}) }

// flush does nothing: adding a key puts it into its position.
func (s berthEnqueuer) flush() {}

// runControllerRuntime is controller-runtime, with the queue that it uses by default or with its older one.
func runControllerRuntime(priority bool) engine {
	return func(ctx context.Context, w work) error {
		c, err := crcontroller.NewUnmanaged("bench", crcontroller.Options{
			MaxConcurrentReconciles: w.workers,
			UsePriorityQueue:        &priority,
			Logger:                  logr.FromSlogHandler(slog.NewTextHandler(io.Discard, nil)),
			Reconciler: crreconcile.Func(func(ctx context.Context, r crreconcile.Request) (crreconcile.Result, error) {
				return crreconcile.Result{}, w.reconcile(ctx, r.NamespacedName)
			}),
		})
		if err != nil {
			return fmt.Errorf("make controller: %w", err)
		}
		err = c.Watch(crsource.Func(func(
			ctx context.Context, queue workqueue.TypedRateLimitingInterface[crreconcile.Request],
		) error {
			w.started(ctx, controllerRuntimeEnqueuer{queue})
			return nil
		}))
		if err != nil {
			return fmt.Errorf("watch source: %w", err)
		}
		return c.Start(ctx)
	}
}

type controllerRuntimeEnqueuer struct {
	queue workqueue.TypedRateLimitingInterface[crreconcile.Request]
}

func (s controllerRuntimeEnqueuer) live(k key) { s.queue.Add(crreconcile.Request{NamespacedName: k}) }

// background adds as the handlers of controller-runtime do for an initial list.
func (s controllerRuntimeEnqueuer) background(k key) {
	request := crreconcile.Request{NamespacedName: k}
	if queue, ok := s.queue.(priorityqueue.PriorityQueue[crreconcile.Request]); ok {
		low := crhandler.LowPriority
		queue.AddWithOpts(priorityqueue.AddOpts{Priority: &low}, request)
		return
	}
	s.queue.Add(request)
}

// flush counts the keys: before that, the priority queue inserts those that it has only buffered.
func (s controllerRuntimeEnqueuer) flush() { s.queue.Len() }
