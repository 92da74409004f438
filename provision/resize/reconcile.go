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
	eventResizing   = "Resizing"
	eventSuccessful = "VolumeResizeSuccessful"
	eventFailed     = "VolumeResizeFailed"
	eventNodePart   = "FileSystemResizeRequired"
)

// errStale says that a claim was changed by somebody else meanwhile. The watch brings it back.
var errStale = errors.New("the claim has changed meanwhile")

// callError is that a driver could not, or would not.
type callError struct {
	error
	outcome outcome
	// hopeless is set if trying again soon makes no sense.
	hopeless bool
}

func (e *callError) Unwrap() error { return e.error }

// reconcile has one claim's volume have the size that the claim asks for.
func (r *Resizer) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	claim, err := r.claims.Get(ctx, key.Namespace, key.Name)
	if apierrors.IsNotFound(err) {
		r.forget(key)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("expand claim %s: %w", key, err)
	}
	if claim.DeletionTimestamp != nil || !concerns(claim) {
		r.forget(key)
		return reconcile.Result{}, nil
	}
	if r.isTidy(key, claim) {
		return reconcile.Result{}, nil
	}
	if wait := r.left(key, claim); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	pv, err := r.volumeOf(ctx, claim)
	if err != nil || pv == nil {
		return reconcile.Result{}, err
	}
	switch what, size := decide(claim, pv); what {
	case rest:
		return reconcile.Result{}, nil
	case tidy:
		return reconcile.Result{}, r.tidy(ctx, key, claim, pv)
	default:
		return r.attempt(ctx, key, claim, pv, size)
	}
}

// volumeOf reads the claim's volume; nil if it is not one of the driver's, or not the claim's.
func (r *Resizer) volumeOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	pv, err := r.deps.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil // then the claim is lost
	case err != nil:
		return nil, fmt.Errorf("expand claim %s/%s: read its volume: %w", claim.Namespace, claim.Name, err)
	case pv.Spec.CSI == nil || pv.Spec.CSI.Driver != r.config.DriverName || pv.DeletionTimestamp != nil:
		return nil, nil
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID:
		return nil, nil
	}
	return pv, nil
}

// attempt makes one try, notes it, and says when the next one is due if it failed.
func (r *Resizer) attempt(ctx context.Context, key reconcile.Request, claim *corev1.PersistentVolumeClaim,
	pv *corev1.PersistentVolume, size resource.Quantity,
) (reconcile.Result, error) {
	span := r.deps.Timeline.Begin(timeline.RefOf(claimKind, claim), owner, timeline.StageExpanding, size.String())
	span.Waited(controller.Waited(ctx))
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
	if call.outcome == inUse {
		r.awaitDetach(key, pv.Name)
	}
	wait := r.pause(key, claim, call.hopeless)
	r.deps.Logger.Warn("cannot make a volume larger", "claim", key.String(), "volume", pv.Name, "size", size.String(),
		"again", wait, "error", err)
	r.recorder.Event(claim, corev1.EventTypeWarning, eventFailed, err.Error())
	if err := r.noteFailure(ctx, claim, call); err != nil && !errors.Is(err, errStale) {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// expand goes through the steps that the package's documentation lists.
func (r *Resizer) expand(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume,
	size resource.Quantity,
) error {
	able, err := r.deps.Driver.Abilities(ctx)
	if err != nil {
		return &callError{error: fmt.Errorf("resize volume %q by driver %q: %w", pv.Name, r.config.DriverName, err)}
	}
	if !able.Controller && !able.Node {
		return &callError{hopeless: true, error: timeline.WithReason(
			fmt.Errorf("resize volume %q: driver %q cannot make volumes larger", pv.Name, r.config.DriverName), "Unsupported",
			"have the StorageClass say allowVolumeExpansion: false, and copy the data to a larger volume")}
	}
	begun, err := r.begin(ctx, claim, size)
	if err != nil {
		return err
	}
	if begun != claim {
		r.recorder.Event(claim, corev1.EventTypeNormal, eventResizing,
			fmt.Sprintf("driver %s is making volume %s larger, to %s", r.config.DriverName, pv.Name, size.String()))
	}
	grown := Grown{Capacity: size.Value(), NodeNeeded: true}
	if able.Controller {
		if grown, err = r.call(ctx, pv, size); err != nil {
			return err
		}
	}
	return r.note(ctx, begun, pv, size, grown)
}

// call asks the driver, and checks its answer.
func (r *Resizer) call(ctx context.Context, pv *corev1.PersistentVolume, size resource.Quantity) (Grown, error) {
	began := r.deps.Clock.Now()
	grown, err := r.deps.Driver.ExpandVolume(ctx, pv, size.Value())
	if ctx.Err() != nil {
		return Grown{}, fmt.Errorf("resize volume %q by driver %q: %w", pv.Name, r.config.DriverName, ctx.Err())
	}
	r.metrics.observe(r.deps.Clock.Since(began), err)
	if err == nil && grown.Capacity > 0 && grown.Capacity < size.Value() {
		err = fmt.Errorf("the driver says that it is done, and that the volume has %d bytes instead of %d", grown.Capacity,
			size.Value())
		return Grown{}, &callError{outcome: final, error: fmt.Errorf("resize volume %q by driver %q: %w",
			pv.Name, r.config.DriverName, err)}
	}
	if err == nil {
		grown.Capacity = max(grown.Capacity, size.Value())
		return grown, nil
	}
	failed := &callError{outcome: outcomeOf(err),
		error: fmt.Errorf("resize volume %q by driver %q: %w", pv.Name, r.config.DriverName, err)}
	failed.hopeless = failed.outcome == infeasible
	switch failed.outcome {
	case infeasible:
		failed.error = timeline.WithReason(failed.error, "Infeasible",
			"ask for less: a claim whose expansion failed may be given any size above its status.capacity")
	case inUse:
		failed.error = timeline.WithReason(failed.error, "InUse",
			"end the Pods that use the claim: it is tried again as soon as the volume is detached")
	}
	return Grown{}, failed
}

// note writes down what the driver has done: first the volume, then the claim.
func (r *Resizer) note(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume,
	size resource.Quantity, grown Grown,
) error {
	if grown.Capacity > size.Value() {
		size = *resource.NewQuantity(grown.Capacity, resource.BinarySI)
	}
	size, err := r.raise(ctx, claim, pv, size, grown.NodeNeeded)
	if err != nil {
		return err
	}
	if claim, err = r.tellNodes(ctx, claim, grown.NodeNeeded); err != nil {
		return err
	}
	if grown.NodeNeeded {
		if err := r.markPending(ctx, claim); err != nil {
			return err
		}
		r.recorder.Event(claim, corev1.EventTypeNormal, eventNodePart, "Require file system resize of volume on node")
		return nil
	}
	if err := r.markDone(ctx, claim, size); err != nil {
		return err
	}
	r.recorder.Event(claim, corev1.EventTypeNormal, eventSuccessful, "Resize volume succeeded")
	return nil
}
