package reconcile

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Request names the object to reconcile. It holds nothing about the event that caused it and nothing of the
// object's content: both are read when the work is done.
type Request struct {
	// NamespacedName is the namespace (empty for a cluster-scoped object) and the name of the object.
	types.NamespacedName
}

// Result is what a Reconciler wants to happen next when it returned no error.
type Result struct {
	// Requeue asks for another call after the request's rate-limited delay. The zero value asks for none.
	Requeue bool
	// RequeueAfter, if greater than zero, asks for another call after this time. It implies Requeue, which need
	// not be set as well, and it forgets the failures that the request has had. The latest Result counts: a call
	// that an event brings about before this time is over takes the place of the one asked for here.
	RequeueAfter time.Duration
}

// IsZero reports whether nothing more is asked for.
func (r Result) IsZero() bool { return r == Result{} }

// Reconciler brings the actual state of the object that a Request names to the state that is wanted of it, be it
// by writing API objects or by changing other systems.
//
// The caller never runs one Request twice at the same time; calls for different Requests run side by side, so an
// implementation guards what they share. It must be idempotent, and return soon after ctx ends.
type Reconciler interface {
	// Reconcile does the whole work for the object named by the Request. What the error and the Result lead to
	// stands in the documentation of the package.
	Reconcile(context.Context, Request) (Result, error)
}

// Func is a function that implements Reconciler.
type Func func(context.Context, Request) (Result, error)

// Reconcile calls f.
func (f Func) Reconcile(ctx context.Context, request Request) (Result, error) { return f(ctx, request) }

// TypedReconciler is a Reconciler whose requests are of any comparable type, for work that is not named by one
// object: a (volume, node) pair, an object in one of several clusters, a shard. Every Reconciler is a
// TypedReconciler[Request], and the reverse.
type TypedReconciler[R comparable] interface {
	// Reconcile is Reconciler.Reconcile for this type of request.
	Reconcile(context.Context, R) (Result, error)
}

// TypedFunc is a function that implements TypedReconciler.
type TypedFunc[R comparable] func(context.Context, R) (Result, error)

// Reconcile calls f.
func (f TypedFunc[R]) Reconcile(ctx context.Context, request R) (Result, error) {
	return f(ctx, request)
}

var (
	_ Reconciler               = Func(nil)
	_ TypedReconciler[Request] = Func(nil)
	_ TypedReconciler[string]  = TypedFunc[string](nil)
	_ TypedReconciler[Request] = Reconciler(nil)
	_ Reconciler               = TypedReconciler[Request](nil)
)
