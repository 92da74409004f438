package modify

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

// The reasons of events, as external-resizer has them.
const (
	eventModifying  = "VolumeModify"
	eventSuccessful = "VolumeModifySuccessful"
	eventFailed     = "VolumeModifyFailed"
)

// errStale is the error for a claim that has changed since it was read. The watch brings it back.
var errStale = errors.New("the claim has changed meanwhile")

// outcome is what a failed try left behind.
type outcome int

const (
	// outcomeUnknown: the driver may be applying the class.
	outcomeUnknown outcome = iota
	// outcomeUnchanged: nothing was sent to the driver.
	outcomeUnchanged
	// outcomePending: nothing was sent, because the class does not exist.
	outcomePending
	// outcomeFinal: the driver does not apply the class now.
	outcomeFinal
	// outcomeInfeasible: the driver cannot apply the class.
	outcomeInfeasible
)

// String returns the value of the metric's label.
func (o outcome) String() string {
	return [...]string{"open", "unsent", "pending", "final", "infeasible"}[o]
}

// callError is the error of a try.
type callError struct {
	error
	outcome outcome
}

func (e *callError) Unwrap() error { return e.error }

// outcomeOf returns what a failed ControllerModifyVolume left behind, by the status codes of CSI.
func outcomeOf(err error) outcome {
	s, sent := status.FromError(err)
	if !sent {
		return outcomeUnchanged
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted:
		return outcomeUnknown
	case codes.InvalidArgument:
		return outcomeInfeasible
	}
	return outcomeFinal
}

// reconcile applies to one claim's volume the class that the claim names.
func (m *Modifier) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	claim, err := m.claims.Get(ctx, key.Namespace, key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("modify volume of claim %s: %w", key, err)
	}
	if err != nil || claim.DeletionTimestamp != nil || !needsWork(claim) {
		m.forget(key)
		return reconcile.Result{}, nil
	}
	what, class := decide(claim)
	if what == stepNone {
		return reconcile.Result{}, nil
	}
	if wait := m.retries.Left(key, claim, class); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	pv, err := m.volumeOf(ctx, claim)
	if err != nil || pv == nil {
		return reconcile.Result{}, err
	}
	if what == stepGiveUp {
		m.forget(key)
		return reconcile.Result{}, ignoreStale(m.giveUp(ctx, claim))
	}
	return m.tryModify(ctx, key, claim, pv, class)
}

func ignoreStale(err error) error {
	if errors.Is(err, errStale) {
		return nil
	}
	return err
}

func (m *Modifier) forget(key reconcile.Request) {
	m.retries.Forget(key)
	m.stopWaiting(key)
}

// volumeOf gets the claim's volume; nil if it is not the driver's, or not the claim's.
func (m *Modifier) volumeOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	pv, err := m.deps.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil // then the claim is lost
	case err != nil:
		return nil, fmt.Errorf("modify volume of claim %s/%s: get it: %w", claim.Namespace, claim.Name, err)
	case pv.Spec.CSI == nil || pv.Spec.CSI.Driver != m.config.DriverName || pv.DeletionTimestamp != nil:
		return nil, nil
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID:
		return nil, nil
	}
	return pv, nil
}

// tryModify makes one attempt and records its result. After a failure it returns when to try again.
func (m *Modifier) tryModify(ctx context.Context, key reconcile.Request, claim *corev1.PersistentVolumeClaim,
	pv *corev1.PersistentVolume, class string,
) (reconcile.Result, error) {
	span := m.deps.Timeline.Begin(timeline.RefOf(claimKind, claim), timelineOwner, timeline.StageModifying, class)
	span.AddWait(controller.QueueWait(ctx))
	err := m.modify(span.Context(ctx), key, claim, pv, class)
	span.End(err)
	var call *callError
	switch {
	case err == nil:
		m.forget(key)
		return reconcile.Result{}, nil
	case errors.Is(err, errStale):
		return reconcile.Result{}, nil
	case ctx.Err() != nil, !errors.As(err, &call):
		return reconcile.Result{}, err
	}
	wait := m.retries.Failed(key, claim, class, call.outcome == outcomeInfeasible || call.outcome == outcomePending)
	m.deps.Logger.Warn("failed to modify volume; retrying", "claim", key.String(), "volume", pv.Name, "class", class,
		"after", wait, "error", err)
	m.recorder.Event(claim, corev1.EventTypeWarning, eventFailed, err.Error())
	if err := m.markFailed(ctx, claim, class, call); ignoreStale(err) != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// modify takes the steps that the package's documentation lists.
func (m *Modifier) modify(ctx context.Context, key reconcile.Request, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume,
	class string,
) error {
	parameters, err := m.parametersOf(ctx, key, pv, class)
	if err != nil {
		return err
	}
	updated, err := m.markInProgress(ctx, claim, class)
	if err != nil {
		return err
	}
	if updated != claim {
		m.recorder.Event(claim, corev1.EventTypeNormal, eventModifying,
			fmt.Sprintf("driver %s is applying VolumeAttributesClass %s to volume %s", m.config.DriverName, class, pv.Name))
	}
	start := m.deps.Clock.Now()
	err = m.deps.Driver.ModifyVolume(ctx, updated, pv, parameters)
	if ctx.Err() != nil {
		return fmt.Errorf("modify volume %q by driver %q: %w", pv.Name, m.config.DriverName, ctx.Err())
	}
	label := "success"
	if err != nil {
		label = outcomeOf(err).String()
	}
	m.metrics.WithLabelValues(label).Observe(m.deps.Clock.Since(start).Seconds())
	if err != nil {
		failed := fmt.Errorf("apply VolumeAttributesClass %q to volume %q by driver %q: %w", class, pv.Name, m.config.DriverName, err)
		if outcomeOf(err) == outcomeInfeasible {
			failed = timeline.WithReason(failed, "Infeasible",
				"name a VolumeAttributesClass that the driver accepts, or the previous one, in the claim's spec.volumeAttributesClassName")
		}
		return &callError{error: failed, outcome: outcomeOf(err)}
	}
	if err := m.recordClass(ctx, pv, class); err != nil {
		return err
	}
	if err := m.markDone(ctx, updated, class); err != nil {
		return err
	}
	m.recorder.Event(claim, corev1.EventTypeNormal, eventSuccessful,
		fmt.Sprintf("volume %s has the attributes of VolumeAttributesClass %s", pv.Name, class))
	return nil
}

// parametersOf returns the parameters of the class for the driver.
func (m *Modifier) parametersOf(ctx context.Context, key reconcile.Request, pv *corev1.PersistentVolume, class string,
) (map[string]string, error) {
	supported, err := m.deps.Driver.SupportsModify(ctx)
	if err != nil {
		return nil, &callError{outcome: outcomeUnchanged,
			error: fmt.Errorf("modify volume %q by driver %q: %w", pv.Name, m.config.DriverName, err)}
	}
	if !supported {
		return nil, &callError{outcome: outcomeInfeasible, error: timeline.WithReason(
			fmt.Errorf("apply VolumeAttributesClass %q to volume %q: driver %q does not modify volumes", class, pv.Name, m.config.DriverName),
			"Unsupported", "name the previous class, or none, in the claim's spec.volumeAttributesClassName")}
	}
	m.waitForClass(key, class)
	found, err := m.deps.Client.StorageV1().VolumeAttributesClasses().Get(ctx, class, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		m.classOnce.Do(func() { close(m.classWanted) })
		return nil, &callError{outcome: outcomePending, error: timeline.WithReason(
			fmt.Errorf("modify volume %q: VolumeAttributesClass %q does not exist", pv.Name, class), "NoSuchClass",
			"create the class, or name another one in the claim's spec.volumeAttributesClassName")}
	}
	if err != nil {
		return nil, fmt.Errorf("modify volume %q: get VolumeAttributesClass %q: %w", pv.Name, class, err)
	}
	m.stopWaiting(key)
	if found.DriverName != m.config.DriverName {
		return nil, &callError{outcome: outcomeInfeasible, error: timeline.WithReason(
			fmt.Errorf("modify volume %q of driver %q: VolumeAttributesClass %q is of driver %q", pv.Name, m.config.DriverName, class, found.DriverName),
			"OtherDriver", "name a VolumeAttributesClass of driver "+m.config.DriverName+" in the claim's spec.volumeAttributesClassName")}
	}
	return found.Parameters, nil
}
