package shared

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

// EventComponent is the source of the events about requests.
const EventComponent = "snapshot-controller"

// BindMin and BindMax bound the backoff of a request that fails.
const BindMin, BindMax = 100 * time.Millisecond, 5 * time.Minute

// Problem is a reason why a request cannot be bound, which its status and an event report.
type Problem struct {
	Reason string
	Err    error
	// Waits is set if an event, and not the backoff, ends it.
	Waits bool
}

func (p *Problem) Error() string { return p.Err.Error() }

// Unwrap returns the cause.
func (p *Problem) Unwrap() error { return p.Err }

// Problemf returns a Problem that is retried, Waitf one that an event ends.
func Problemf(reason, format string, args ...any) *Problem {
	return &Problem{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// Waitf is documented with Problemf.
func Waitf(reason, format string, args ...any) *Problem {
	return &Problem{Reason: reason, Err: fmt.Errorf(format, args...), Waits: true}
}

// IgnoreStale drops the error of a write to an object that has changed or is gone: its event brings the request back.
func IgnoreStale(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Reporting is what problems are reported by. All are required.
type Reporting struct {
	Recorder func() record.EventRecorder
	Clock    clock.PassiveClock
	Logger   *slog.Logger
}

// Binding is how requests of one kind, R, are bound to their contents, C.
type Binding[R, C client.Object] struct {
	Requests Writer[R]
	Contents Writer[C]
	// Get reads a request from the cache; Naming returns the contents that name a request.
	Get    func(ctx context.Context, namespace, name string) (R, error)
	Naming func(ctx context.Context, key reconcile.Request) ([]C, error)
	// RefOf returns the request that a content names.
	RefOf func(C) *corev1.ObjectReference
	// StatusOf returns the error in a request's status, and whether it is ready.
	StatusOf func(R) (*api.Error, bool)
	// Finalizer keeps a content until what it stands for is deleted; BeingDeleted is the annotation that allows its deletion.
	Finalizer, BeingDeleted string
	// Bind finds or creates the content of a request and copies the content's status; Delete carries the deletion of a request
	// over to its content.
	Bind, Delete func(context.Context, reconcile.Request, R) error
	// Release, if set, releases what requests of the name left that do not exist any more; current is the UID of the one in the
	// cache, "" if there is none.
	Release func(ctx context.Context, key reconcile.Request, current types.UID) error

	Reporting
	// Timeline gets a stage of Owner for each problem. It may be nil.
	Timeline *timeline.Recorder
	Owner    string
}

// Reconcile brings one request on, and the contents that name it.
func (b *Binding[R, C]) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	request, err := b.Get(ctx, key.Namespace, key.Name)
	exists := err == nil
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("bind %s %s: %w", b.Requests.kind.Kind, key, err)
	}
	if !exists {
		if err := b.reconcileContents(ctx, key, ""); err != nil {
			return reconcile.Result{}, IgnoreStale(err)
		}
		return reconcile.Result{}, b.release(ctx, key, "")
	}
	if err := b.reconcileContents(ctx, key, request.GetUID()); err != nil {
		return reconcile.Result{}, IgnoreStale(err)
	}
	// What an earlier request of the name left must not keep this one from being bound.
	return reconcile.Result{}, errors.Join(b.release(ctx, key, request.GetUID()), b.bindOrDelete(ctx, key, request))
}

func (b *Binding[R, C]) release(ctx context.Context, key reconcile.Request, current types.UID) error {
	if b.Release == nil {
		return nil
	}
	return IgnoreStale(b.Release(ctx, key, current))
}

// bindOrDelete brings on a request that exists, and reports a Problem.
func (b *Binding[R, C]) bindOrDelete(ctx context.Context, key reconcile.Request, request R) (err error) {
	if request.GetDeletionTimestamp() != nil {
		err = b.Delete(ctx, key, request)
	} else {
		err = b.Bind(ctx, key, request)
	}
	var wrong *Problem
	if !errors.As(err, &wrong) {
		return IgnoreStale(err)
	}
	if err := b.report(ctx, key, wrong); err != nil {
		return IgnoreStale(err)
	}
	if wrong.Waits {
		return nil
	}
	return fmt.Errorf("bind %s %s: %w", b.Requests.kind.Kind, key, wrong)
}

// reconcileContents does what contents need beside their request, whose UID is "" if it does not exist: one that a user created
// gets its finalizer, and one whose request is gone may be deleted.
func (b *Binding[R, C]) reconcileContents(ctx context.Context, key reconcile.Request, of types.UID) error {
	naming, err := b.Naming(ctx, key)
	if err != nil {
		return err
	}
	for _, content := range naming {
		uid := b.RefOf(content).UID
		gone := uid != "" && of != uid
		switch deleted := content.GetDeletionTimestamp() != nil; {
		case !deleted && !gone && !slices.Contains(content.GetFinalizers(), b.Finalizer):
			_, err = b.Contents.AddFinalizers(ctx, content, b.Finalizer)
		case deleted && gone && content.GetAnnotations()[b.BeingDeleted] == "":
			_, err = b.Contents.Mark(ctx, content, b.BeingDeleted)
		}
		if err != nil && IgnoreStale(err) != nil {
			return fmt.Errorf("update %s: %w", b.Contents.NameOf(content), err)
		}
	}
	return nil
}

// report writes a problem into the request's status and records an event, once as long as it stays the same.
func (b *Binding[R, C]) report(ctx context.Context, key reconcile.Request, wrong *Problem) error {
	request, err := b.Get(ctx, key.Namespace, key.Name)
	if err != nil {
		return err
	}
	now, ready := b.StatusOf(request)
	if Says(now, wrong.Error()) && !ready {
		return nil
	}
	kind := b.Requests.kind.Kind
	b.Logger.Warn("cannot bind a request to its content", "kind", kind, "name", key.String(), "reason", wrong.Reason, "error", wrong)
	b.Timeline.Mark(timeline.RefOf(kind, request), b.Owner, "Binding", wrong.Reason, wrong)
	b.Recorder().Event(b.Requests.RefOf(request), corev1.EventTypeWarning, wrong.Reason, wrong.Error())
	return b.Requests.WriteError(ctx, request, b.Clock.Now(), wrong.Error(), false)
}

// CheckRef returns a Problem unless a content is the request's: it names the request, by its UID if the content is not one that
// a user created (static) and that is not bound yet.
func (b *Binding[R, C]) CheckRef(request R, content C, static bool, reason string) error {
	ref := b.RefOf(content)
	if ref.Namespace == request.GetNamespace() && ref.Name == request.GetName() &&
		(ref.UID == request.GetUID() || static && ref.UID == "") {
		return nil
	}
	return Waitf(reason, "%s is bound to another %s: %s/%s", b.Contents.NameOf(content), b.Requests.kind.Kind, ref.Namespace, ref.Name)
}

// DeleteContent deletes the content of a request that is being deleted, and reports whether it is, or was, to be deleted. The
// content's annotation allows that from then on.
func (b *Binding[R, C]) DeleteContent(ctx context.Context, request R, content C, policy api.DeletionPolicy, reason string,
	remove func(ctx context.Context, namespace, name string, options metav1.DeleteOptions) error,
) (deleting bool, err error) {
	if content, err = b.Contents.Mark(ctx, content, b.BeingDeleted); err != nil {
		return false, err
	}
	if policy != api.Delete {
		return false, nil
	}
	if content.GetDeletionTimestamp() != nil {
		return true, nil
	}
	uid := content.GetUID()
	err = remove(ctx, "", content.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil && !apierrors.IsNotFound(err) {
		b.Recorder().Event(b.Requests.RefOf(request), corev1.EventTypeWarning, reason, err.Error())
		return true, fmt.Errorf("delete %s: %w", b.Contents.NameOf(content), err)
	}
	return true, nil
}
