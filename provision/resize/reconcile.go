package resize

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

// The reasons of events, as external-resizer has them.
const (
	eventResizing      = "Resizing"
	eventSuccessful    = "VolumeResizeSuccessful"
	eventFailed        = "VolumeResizeFailed"
	eventNodeExpansion = "FileSystemResizeRequired"
)

// errStale is the error for a claim that has changed since it was read. The watch brings it back.
var errStale = errors.New("the claim has changed meanwhile")

// callError is the error of a call of the driver.
type callError struct {
	error
	outcome outcome
	// infeasible lengthens the backoff.
	infeasible bool
}

func (e *callError) Unwrap() error { return e.error }

// reconcile expands one claim's volume to the size that the claim requests.
func (r *Resizer) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	claim, err := r.claims.Get(ctx, key.Namespace, key.Name)
	if apierrors.IsNotFound(err) {
		r.forget(key)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("expand claim %s: %w", key, err)
	}
	if claim.DeletionTimestamp != nil || !needsWork(claim) {
		r.forget(key)
		return reconcile.Result{}, nil
	}
	if r.isComplete(key, claim) {
		return reconcile.Result{}, nil
	}
	if wait := r.retries.Left(key, claim, wantOf(claim)); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	pv, err := r.volumeOf(ctx, claim)
	if err != nil || pv == nil {
		return reconcile.Result{}, err
	}
	switch what, size := decide(claim, pv); what {
	case stepNone:
		return reconcile.Result{}, nil
	case stepCleanup:
		return reconcile.Result{}, r.cleanup(ctx, key, claim, pv)
	default:
		return r.tryExpand(ctx, key, claim, pv, size)
	}
}

// volumeOf gets the claim's volume; nil if it is not the driver's, or not the claim's.
func (r *Resizer) volumeOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	pv, err := r.deps.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil // then the claim is lost
	case err != nil:
		return nil, fmt.Errorf("expand claim %s/%s: get its volume: %w", claim.Namespace, claim.Name, err)
	case pv.Spec.CSI == nil || pv.Spec.CSI.Driver != r.config.DriverName || pv.DeletionTimestamp != nil:
		return nil, nil
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID:
		return nil, nil
	}
	return pv, nil
}

// tryExpand makes one attempt and records its result. After a failure it returns when to try again.
func (r *Resizer) tryExpand(ctx context.Context, key reconcile.Request, claim *corev1.PersistentVolumeClaim,
	pv *corev1.PersistentVolume, size resource.Quantity,
) (reconcile.Result, error) {
	span := r.deps.Timeline.Begin(timeline.RefOf(claimKind, claim), timelineOwner, timeline.StageExpanding, size.String())
	span.AddWait(controller.QueueWait(ctx))
	err := r.expand(span.Context(ctx), claim, pv, size)
	var call *callError
	switch {
	case err == nil:
		span.End(nil)
		r.succeeded(key, pv.Name)
		return reconcile.Result{}, nil
	case errors.Is(err, errStale):
		span.End(err)
		return reconcile.Result{}, nil
	case ctx.Err() != nil, !errors.As(err, &call):
		span.End(err)
		return reconcile.Result{}, err
	}
	span.End(err)
	if call.outcome == outcomeInUse {
		r.retryAfterDetach(key, pv.Name)
	}
	wait := r.retries.Failed(key, claim, wantOf(claim), call.infeasible)
	r.deps.Logger.Warn("failed to expand volume; retrying", "claim", key.String(), "volume", pv.Name, "size", size.String(),
		"after", wait, "error", err)
	r.recorder.Event(claim, corev1.EventTypeWarning, eventFailed, err.Error())
	if err := r.markFailed(ctx, claim, call); err != nil && !errors.Is(err, errStale) {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// expand takes the steps that the package's documentation lists.
func (r *Resizer) expand(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume,
	size resource.Quantity,
) error {
	capabilities, err := r.deps.Driver.Capabilities(ctx)
	if err != nil {
		return &callError{error: fmt.Errorf("resize volume %q by driver %q: %w", pv.Name, r.config.DriverName, err)}
	}
	if !capabilities.Controller && !capabilities.Node {
		return &callError{infeasible: true, error: timeline.WithReason(
			fmt.Errorf("resize volume %q: driver %q does not support volume expansion", pv.Name, r.config.DriverName), "Unsupported",
			"set allowVolumeExpansion: false in the StorageClass, and copy the data to a larger volume")}
	}
	updated, err := r.markInProgress(ctx, claim, size)
	if err != nil {
		return err
	}
	if updated != claim {
		r.recorder.Event(claim, corev1.EventTypeNormal, eventResizing,
			fmt.Sprintf("driver %s is expanding volume %s to %s", r.config.DriverName, pv.Name, size.String()))
	}
	result := ExpandResult{Capacity: size.Value(), NodeExpansionRequired: true}
	if capabilities.Controller {
		if result, err = r.call(ctx, pv, size); err != nil {
			return err
		}
	}
	return r.recordExpansion(ctx, updated, pv, size, result)
}

// call calls the driver and checks its response.
func (r *Resizer) call(ctx context.Context, pv *corev1.PersistentVolume, size resource.Quantity) (ExpandResult, error) {
	start := r.deps.Clock.Now()
	result, err := r.deps.Driver.ExpandVolume(ctx, pv, size.Value())
	if ctx.Err() != nil {
		return ExpandResult{}, fmt.Errorf("resize volume %q by driver %q: %w", pv.Name, r.config.DriverName, ctx.Err())
	}
	r.metrics.observe(r.deps.Clock.Since(start), err)
	if err == nil && result.Capacity > 0 && result.Capacity < size.Value() {
		err = fmt.Errorf("the driver reports success, but the volume has %d bytes instead of %d", result.Capacity,
			size.Value())
		return ExpandResult{}, &callError{outcome: outcomeFinal, error: fmt.Errorf("resize volume %q by driver %q: %w",
			pv.Name, r.config.DriverName, err)}
	}
	if err == nil {
		result.Capacity = max(result.Capacity, size.Value())
		return result, nil
	}
	failed := &callError{outcome: outcomeOf(err),
		error: fmt.Errorf("resize volume %q by driver %q: %w", pv.Name, r.config.DriverName, err)}
	failed.infeasible = failed.outcome == outcomeInfeasible
	switch failed.outcome {
	case outcomeInfeasible:
		failed.error = timeline.WithReason(failed.error, "Infeasible",
			"request less: a claim whose expansion failed may request any size above its status.capacity")
	case outcomeInUse:
		failed.error = timeline.WithReason(failed.error, "InUse",
			"delete the Pods that use the claim: the expansion is retried when the volume is detached")
	}
	return ExpandResult{}, failed
}

// recordExpansion writes what the driver has done: first into the volume, then into the claim.
func (r *Resizer) recordExpansion(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume,
	size resource.Quantity, result ExpandResult,
) error {
	if result.Capacity > size.Value() {
		size = *resource.NewQuantity(result.Capacity, resource.BinarySI)
	}
	size, err := r.raiseCapacity(ctx, claim, pv, size, result.NodeExpansionRequired)
	if err != nil {
		return err
	}
	if claim, err = r.annotateNodesIdle(ctx, claim, result.NodeExpansionRequired); err != nil {
		return err
	}
	if result.NodeExpansionRequired {
		if err := r.markPending(ctx, claim); err != nil {
			return err
		}
		r.recorder.Event(claim, corev1.EventTypeNormal, eventNodeExpansion, "Require file system resize of volume on node")
		return nil
	}
	if err := r.markDone(ctx, claim, size); err != nil {
		return err
	}
	r.recorder.Event(claim, corev1.EventTypeNormal, eventSuccessful, "Resize volume succeeded")
	return nil
}
