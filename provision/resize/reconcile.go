package resize

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/provision/claimwork"
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

// outcomes has the codes of ControllerExpandVolume that are not just final.
//
// ResourceExhausted is final, unlike in external-resizer, where it may come from a limit on requests: a driver that works on
// an earlier call returns Aborted, and a claim whose disk is full must be able to request less.
var outcomes = map[codes.Code]claimwork.Outcome{
	codes.InvalidArgument: claimwork.Infeasible, codes.OutOfRange: claimwork.Infeasible, codes.NotFound: claimwork.Infeasible,
	codes.FailedPrecondition: claimwork.InUse,
}

// wantOf returns what a claim requests, for the delays of retries.
func wantOf(claim *corev1.PersistentVolumeClaim) string {
	want := requestedSize(claim)
	return want.String()
}

// reconcile expands one claim's volume to the size that the claim requests.
func (r *Resizer) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	claim, err := r.Claims.Get(ctx, key.Namespace, key.Name)
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
	if wait := r.Retries.Left(key, claim, wantOf(claim)); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	pv, err := r.VolumeOf(ctx, claim)
	if err != nil || pv == nil {
		return reconcile.Result{}, err
	}
	switch what, size := decide(claim, pv); what {
	case stepNone:
		return reconcile.Result{}, nil
	case stepCleanup:
		return reconcile.Result{}, r.cleanup(ctx, key, claim, pv)
	case stepRetryNode:
		if wait := r.nodeRetryDelay(key, claim); wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, nil
		}
		fallthrough
	default:
		return r.tryExpand(ctx, key, claim, pv, size)
	}
}

// tryExpand makes one attempt and records its result. After a failure it returns when to try again.
func (r *Resizer) tryExpand(ctx context.Context, key reconcile.Request, claim *corev1.PersistentVolumeClaim,
	pv *corev1.PersistentVolume, size resource.Quantity,
) (reconcile.Result, error) {
	done, result, err := r.Attempt(ctx, key, claimwork.Try{
		Claim: claim, Volume: pv, Stage: timeline.StageExpanding, Want: wantOf(claim), Detail: size.String(),
		Do: func(ctx context.Context) error { return r.expand(ctx, claim, pv, size) },
		MarkFailed: func(ctx context.Context, failure *claimwork.Failure) error {
			if failure.Outcome == claimwork.InUse {
				r.retryAfterDetach(key, pv.Name)
			}
			return r.markFailed(ctx, claim, failure)
		},
	})
	if done {
		r.succeeded(key, pv.Name)
	}
	return result, err
}

// expand takes the steps that the package's documentation lists.
func (r *Resizer) expand(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume,
	size resource.Quantity,
) error {
	capabilities, err := r.driver.Capabilities(ctx)
	if err != nil {
		return claimwork.Fail(claimwork.NotSent, fmt.Errorf("resize volume %q by driver %q: %w", pv.Name, r.Config.DriverName, err))
	}
	if !capabilities.Controller && !capabilities.Node {
		failure := claimwork.Fail(claimwork.NotSent, timeline.WithReason(
			fmt.Errorf("resize volume %q: driver %q does not support volume expansion", pv.Name, r.Config.DriverName), "Unsupported",
			"set allowVolumeExpansion: false in the StorageClass, and copy the data to a larger volume"))
		failure.Slow = true
		return failure
	}
	updated, err := r.markInProgress(ctx, claim, size)
	if err != nil {
		return err
	}
	if updated != claim {
		r.Recorder().Event(claim, corev1.EventTypeNormal, eventResizing,
			fmt.Sprintf("driver %s is expanding volume %s to %s", r.Config.DriverName, pv.Name, size.String()))
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
	start := r.Deps.Clock.Now()
	result, err := r.driver.ExpandVolume(ctx, pv, size.Value())
	if ctx.Err() != nil {
		return ExpandResult{}, fmt.Errorf("resize volume %q by driver %q: %w", pv.Name, r.Config.DriverName, ctx.Err())
	}
	outcome := claimwork.OutcomeOf(err, outcomes)
	r.Observe(start, err, outcome)
	if err == nil && result.Capacity > 0 && result.Capacity < size.Value() {
		return ExpandResult{}, claimwork.Fail(claimwork.Final, fmt.Errorf(
			"resize volume %q by driver %q: the driver reports success, but the volume has %d bytes instead of %d",
			pv.Name, r.Config.DriverName, result.Capacity, size.Value()))
	}
	if err == nil {
		result.Capacity = max(result.Capacity, size.Value())
		return result, nil
	}
	err = fmt.Errorf("resize volume %q by driver %q: %w", pv.Name, r.Config.DriverName, err)
	switch outcome {
	case claimwork.Infeasible:
		err = timeline.WithReason(err, "Infeasible",
			"request less: a claim whose expansion failed may request any size above its status.capacity")
	case claimwork.InUse:
		err = timeline.WithReason(err, "InUse",
			"delete the Pods that use the claim: the expansion is retried when the volume is detached")
	}
	return ExpandResult{}, claimwork.Fail(outcome, err)
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
		r.Recorder().Event(claim, corev1.EventTypeNormal, eventNodeExpansion, "Require file system resize of volume on node")
		return nil
	}
	if err := r.markDone(ctx, claim, size); err != nil {
		return err
	}
	r.Recorder().Event(claim, corev1.EventTypeNormal, eventSuccessful, "Resize volume succeeded")
	return nil
}
