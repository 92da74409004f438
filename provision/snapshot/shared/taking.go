package shared

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/reconcile"
)

// RetryMin and RetryMax bound the backoff of a content that fails.
const RetryMin, RetryMax = time.Second, 5 * time.Minute

const (
	// staleRetry is when a content is reconciled again that others have changed meanwhile.
	staleRetry = 20 * time.Millisecond
	// pollMin and pollMax bound the time between two reads of a snapshot that is not ready: no event says when it is.
	pollMin, pollMax = 500 * time.Millisecond, time.Minute
)

// ErrUnsupported is the error of a driver that does not support snapshots.
var ErrUnsupported = errors.New("the driver does not support snapshots")

// ErrGroupsUnsupported is ErrUnsupported of a driver that takes no group snapshots.
var ErrGroupsUnsupported = fmt.Errorf("%w of groups: it has no group controller service that takes them", ErrUnsupported)

// State is what of a content decides about its deletion and its next call.
type State struct {
	// Ready: volumes can be created from what it stands for.
	Ready bool
	// Error is that of its status.
	Error *api.Error
	// Orphan: a user made it known, and no request was ever bound to it.
	Orphan bool
}

// Taking is how the contents of one kind are completed by a driver.
type Taking[C client.Object] struct {
	Writer[C]
	// Get reads a content from the cache.
	Get func(ctx context.Context, namespace, name string) (C, error)
	// Driver returns the name of the driver of a content, StateOf its state.
	Driver  func(C) string
	StateOf func(C) State
	// BeingCreated and BeingDeleted are the annotations that mark an unknown result of a call, and a deletion that is allowed.
	BeingCreated, BeingDeleted string
	// ReasonDelete is the reason of events about a deletion that failed.
	ReasonDelete string
	// Delete deletes what a content stands for, and releases the content.
	Delete func(context.Context, C) error
	// Take calls the driver for a content that is not ready. It returns whether it is ready now, and the reason of the event if
	// it failed.
	Take func(context.Context, C) (ready bool, reason string, err error)

	// DriverName is the name of the driver whose contents are completed.
	DriverName string
	Reporting
	polls polls
}

// ErrNothingToDo is an error of Take: there is nothing to do before the next event.
var ErrNothingToDo = errors.New("nothing to do before the next event")

// Reconcile brings one content on.
func (t *Taking[C]) Reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	content, err := t.Get(ctx, "", key.Name)
	if apierrors.IsNotFound(err) || err == nil && t.Driver(content) != t.DriverName {
		t.polls.forget(key)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("reconcile %s %q: %w", t.kind.Kind, key.Name, err)
	}
	state, unknown := t.StateOf(content), content.GetAnnotations()[t.BeingCreated] != ""
	deleted := content.GetDeletionTimestamp() != nil
	ready, reason := true, t.ReasonDelete
	switch {
	case deleted && (state.Orphan || !unknown && content.GetAnnotations()[t.BeingDeleted] != ""):
		err = t.Delete(ctx, content)
	case state.Ready && !unknown:
	case deleted && !unknown:
		return reconcile.Result{}, nil // its request still uses it
	default:
		ready, reason, err = t.Take(ctx, content)
		if err == nil && deleted {
			return t.Reconcile(ctx, key) // the result is known now
		}
	}
	switch {
	case errors.Is(err, ErrNothingToDo):
		return reconcile.Result{}, nil
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		return reconcile.Result{RequeueAfter: staleRetry}, nil
	case err != nil && ctx.Err() == nil:
		return reconcile.Result{}, t.report(ctx, content, reason, err)
	case err != nil:
		return reconcile.Result{}, err
	case !ready:
		return reconcile.Result{RequeueAfter: t.polls.next(key)}, nil
	}
	t.polls.forget(key)
	return reconcile.Result{}, nil
}

// NeedsWork accepts events after which there is something to do. Most changes of a content are the controller's own writes, which
// must not end its backoff.
func (t *Taking[C]) NeedsWork(event controller.Event) bool {
	content, ok := event.Object.(C)
	if !ok || t.Driver(content) != t.DriverName {
		return false
	}
	old, known := event.Old.(C)
	if event.Type != controller.Updated || !known || old.GetUID() != content.GetUID() {
		return true
	}
	return old.GetGeneration() != content.GetGeneration() ||
		(old.GetDeletionTimestamp() == nil) != (content.GetDeletionTimestamp() == nil) ||
		(old.GetAnnotations()[t.BeingDeleted] != "") != (content.GetAnnotations()[t.BeingDeleted] != "")
}

// report writes an error into the status, once as long as it stays the same, and returns it.
func (t *Taking[C]) report(ctx context.Context, content C, reason string, failed error) error {
	state, message := t.StateOf(content), failed.Error()
	if Says(state.Error, message) {
		return failed
	}
	t.Recorder().Event(t.RefOf(content), corev1.EventTypeWarning, reason, message)
	if err := t.WriteError(ctx, content, t.Clock.Now(), message, state.Ready && content.GetDeletionTimestamp() == nil); err != nil {
		t.Logger.Warn("failed to write the error of a content into its status", "content", content.GetName(), "error", err)
	}
	return failed
}

// Call makes a driver's call that creates something for a content: before the first one the content is marked, because its result
// may stay unknown, and after an error that is final the mark is removed. The caller removes the mark after a success, when it
// has written the result. isKnown says that an earlier call had a result.
func Call[C client.Object, R any](ctx context.Context, t *Taking[C], content C, isKnown bool, call func() (R, error)) (C, R, error) {
	var none R
	first := !isKnown && content.GetAnnotations()[t.BeingCreated] == ""
	if first {
		marked, err := t.Mark(ctx, content, t.BeingCreated)
		if err != nil {
			return content, none, err
		}
		content = marked
	}
	result, err := call()
	if err == nil {
		return content, result, nil
	}
	if isFinal(err) || first && !wasSent(err) {
		_, clearErr := t.Annotate(ctx, content, t.BeingCreated, nil)
		err = errors.Join(err, clearErr)
	}
	return content, none, err
}

// wasSent reports whether the driver may have got the call that failed.
func wasSent(err error) bool {
	_, ok := status.FromError(err)
	return ok
}

// isFinal reports whether after this error nothing is being created, as the CSI specification has it. An error without a status
// was not sent, or a result that could not be understood.
func isFinal(err error) bool {
	if errors.Is(err, ErrUnsupported) {
		return true
	}
	reported, ok := status.FromError(err)
	if !ok {
		return false
	}
	switch reported.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true
}

// ClassOf returns the class that a content names, nil if it names none.
func ClassOf[T any](ctx context.Context, kind string, name *string, get func(context.Context, string, metav1.GetOptions) (*T, error)) (*T, error) {
	if ptr.Deref(name, "") == "" {
		return nil, nil
	}
	class, err := get(ctx, *name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%s %q does not exist", kind, *name)
	}
	if err != nil {
		return nil, fmt.Errorf("get %s %q: %w", kind, *name, err)
	}
	return class, nil
}

// polls counts how often what is not ready was read.
type polls struct {
	mu    sync.Mutex // guards count
	count map[reconcile.Request]int
}

// next returns when to read it again.
func (p *polls) next(key reconcile.Request) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count == nil {
		p.count = map[reconcile.Request]int{}
	}
	wait := min(pollMin<<min(p.count[key], 16), pollMax)
	p.count[key]++
	return wait
}

func (p *polls) forget(key reconcile.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.count, key)
}
