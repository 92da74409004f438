package replicaset

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/reconcile"
)

// reconciliation is one reconciliation of one ReplicaSet.
type reconciliation struct {
	*Controller
	rs       *appsv1.ReplicaSet // from the cache or the last write; not to be modified
	state    *setState
	key      string // of its expectations
	selector labels.Selector
	desired  int

	active      []*corev1.Pod // its Pods that count, without those whose deletion is expected
	terminating []*corev1.Pod // its Pods that are being deleted
	unseen      int           // created Pods that the cache does not show
}

// Reconcile implements reconcile.Reconciler.
func (c *Controller) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	rs, err := c.replicaSets.Get(ctx, request.Namespace, request.Name)
	if apierrors.IsNotFound(err) {
		if uid := c.states.forget(request.NamespacedName); uid != "" {
			return reconcile.Result{}, c.expectations.DeleteExpectations(logr.Discard(), string(uid))
		}
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read replicaset %q: %w", request, err)
	}
	known, previousUID := c.states.get(request.NamespacedName, rs.UID)
	if previousUID != "" {
		_ = c.expectations.DeleteExpectations(logr.Discard(), string(previousUID)) // its error is always nil
	}
	selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
	if err == nil && selector.Empty() {
		err = errors.New("it is empty and would match every pod")
	}
	if err != nil {
		return reconcile.Result{}, reconcile.TerminalError(
			fmt.Errorf("read replicaset %q: field spec.selector: %w", request, err))
	}
	r := &reconciliation{Controller: c, rs: rs, state: known, key: string(rs.UID), selector: selector, desired: 1}
	if rs.Spec.Replicas != nil {
		r.desired = int(*rs.Spec.Replicas)
	}
	return r.execute(ctx)
}

func (r *reconciliation) execute(ctx context.Context) (reconcile.Result, error) {
	if err := r.resolvePendingDeletes(ctx); err != nil {
		return reconcile.Result{}, err
	}
	if err := r.observe(ctx); err != nil {
		return reconcile.Result{}, err
	}
	var manageErr error
	if r.rs.DeletionTimestamp == nil {
		manageErr = r.manage(ctx)
	}
	now := r.deps.Clock.Now()
	status := r.status(manageErr, now)
	if err := r.writeStatus(ctx, status); err != nil {
		return reconcile.Result{}, err
	}
	if manageErr != nil {
		return reconcile.Result{}, manageErr
	}
	return reconcile.Result{RequeueAfter: r.requeueAfter(now)}, nil
}

// observe finds the ReplicaSet's Pods, adopts and releases Pods, and syncs its expectations with the cache.
func (r *reconciliation) observe(ctx context.Context) error {
	// The version is read before the Pods: what the cache has seen by then is in the list, or gone.
	seen := r.pods.LastStoreSyncResourceVersion()
	found, err := r.listPods()
	if err != nil {
		return err
	}
	var live, terminating []types.UID
	for _, pod := range found {
		if pod.DeletionTimestamp == nil {
			live = append(live, pod.UID)
		} else {
			terminating = append(terminating, pod.UID)
		}
	}
	r.expectations.SyncExpectationsAt(r.key, seen, live, terminating)
	r.state.dropSeenCreates(found)
	for _, pod := range found {
		switch {
		case podutil.IsTerminal(&pod.Status):
		case pod.DeletionTimestamp != nil:
			if metav1.IsControlledBy(pod, r.rs) && r.selector.Matches(labels.Set(pod.Labels)) {
				r.terminating = append(r.terminating, pod)
			}
		case r.expectations.HasDeleteExpectation(r.key, pod.UID):
		default:
			r.active = append(r.active, pod)
		}
	}
	r.unseen = len(r.expectations.GetCreateExpectations(r.key))
	r.active, err = r.claimPods(ctx, r.active)
	return err
}

// requeueAfter returns when to reconcile again without an event: when the next Pod becomes available, or after
// Config.Recheck if the cache does not show a created Pod. Zero means never.
func (r *reconciliation) requeueAfter(now time.Time) time.Duration {
	var next time.Duration
	if r.unseen > 0 {
		next = r.config.Recheck
	}
	for _, pod := range r.active {
		at, ready := readySince(pod)
		if !ready {
			continue
		}
		wait := at.Add(time.Duration(r.rs.Spec.MinReadySeconds) * time.Second).Sub(now)
		if wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
	}
	return next
}
