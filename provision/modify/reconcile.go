package modify

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/provision/claimwork"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

// The reasons of events, as external-resizer has them.
const (
	eventModifying  = "VolumeModify"
	eventSuccessful = "VolumeModifySuccessful"
	eventFailed     = "VolumeModifyFailed"
)

// outcomes has the codes of ControllerModifyVolume that are not just final.
var outcomes = map[codes.Code]claimwork.Outcome{codes.InvalidArgument: claimwork.Infeasible}

// reconcile applies to one claim's volume the class that the claim names.
func (m *Modifier) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	claim, err := m.Claims.Get(ctx, key.Namespace, key.Name)
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
	if wait := m.Retries.Left(key, claim, class); wait > 0 {
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	pv, err := m.VolumeOf(ctx, claim)
	if err != nil || pv == nil {
		return reconcile.Result{}, err
	}
	if what == stepGiveUp {
		m.forget(key)
		return reconcile.Result{}, claimwork.IgnoreStale(m.giveUp(ctx, claim))
	}
	return m.tryModify(ctx, key, claim, pv, class)
}

func (m *Modifier) forget(key reconcile.Request) {
	m.Retries.Forget(key)
	m.stopWaiting(key)
}

// tryModify makes one attempt and records its result. After a failure it returns when to try again.
func (m *Modifier) tryModify(ctx context.Context, key reconcile.Request, claim *corev1.PersistentVolumeClaim,
	pv *corev1.PersistentVolume, class string,
) (reconcile.Result, error) {
	done, result, err := m.Attempt(ctx, key, claimwork.Try{
		Claim: claim, Volume: pv, Stage: timeline.StageModifying, Want: class, Detail: class,
		Do: func(ctx context.Context) error { return m.modify(ctx, key, claim, pv, class) },
		MarkFailed: func(ctx context.Context, failure *claimwork.Failure) error {
			return m.markFailed(ctx, claim, class, failure)
		},
	})
	if done {
		m.forget(key)
	}
	return result, err
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
		m.Recorder().Event(claim, corev1.EventTypeNormal, eventModifying,
			fmt.Sprintf("driver %s is applying VolumeAttributesClass %s to volume %s", m.Config.DriverName, class, pv.Name))
	}
	start := m.Deps.Clock.Now()
	err = m.driver.ModifyVolume(ctx, updated, pv, parameters)
	if ctx.Err() != nil {
		return fmt.Errorf("modify volume %q by driver %q: %w", pv.Name, m.Config.DriverName, ctx.Err())
	}
	outcome := claimwork.OutcomeOf(err, outcomes)
	m.Observe(start, err, outcome)
	if err != nil {
		failed := fmt.Errorf("apply VolumeAttributesClass %q to volume %q by driver %q: %w", class, pv.Name, m.Config.DriverName, err)
		if outcome == claimwork.Infeasible {
			failed = timeline.WithReason(failed, "Infeasible",
				"name a VolumeAttributesClass that the driver accepts, or the previous one, in the claim's spec.volumeAttributesClassName")
		}
		return claimwork.Fail(outcome, failed)
	}
	if err := m.recordClass(ctx, pv, class); err != nil {
		return err
	}
	if err := m.markDone(ctx, updated, class); err != nil {
		return err
	}
	m.Recorder().Event(claim, corev1.EventTypeNormal, eventSuccessful,
		fmt.Sprintf("volume %s has the attributes of VolumeAttributesClass %s", pv.Name, class))
	return nil
}

// parametersOf returns the parameters of the class for the driver.
func (m *Modifier) parametersOf(ctx context.Context, key reconcile.Request, pv *corev1.PersistentVolume, class string,
) (map[string]string, error) {
	supported, err := m.driver.SupportsModify(ctx)
	if err != nil {
		return nil, claimwork.Fail(claimwork.NotSent, fmt.Errorf("modify volume %q by driver %q: %w", pv.Name, m.Config.DriverName, err))
	}
	if !supported {
		return nil, claimwork.Fail(claimwork.Infeasible, timeline.WithReason(
			fmt.Errorf("apply VolumeAttributesClass %q to volume %q: driver %q does not modify volumes", class, pv.Name, m.Config.DriverName),
			"Unsupported", "name the previous class, or none, in the claim's spec.volumeAttributesClassName"))
	}
	m.waitForClass(key, class)
	found, err := m.Deps.Client.StorageV1().VolumeAttributesClasses().Get(ctx, class, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		m.classOnce.Do(func() { close(m.classWanted) })
		return nil, claimwork.Fail(claimwork.Pending, timeline.WithReason(
			fmt.Errorf("modify volume %q: VolumeAttributesClass %q does not exist", pv.Name, class), "NoSuchClass",
			"create the class, or name another one in the claim's spec.volumeAttributesClassName"))
	}
	if err != nil {
		return nil, fmt.Errorf("modify volume %q: get VolumeAttributesClass %q: %w", pv.Name, class, err)
	}
	m.stopWaiting(key)
	if found.DriverName != m.Config.DriverName {
		return nil, claimwork.Fail(claimwork.Infeasible, timeline.WithReason(
			fmt.Errorf("modify volume %q of driver %q: VolumeAttributesClass %q is of driver %q", pv.Name, m.Config.DriverName, class, found.DriverName),
			"OtherDriver", "name a VolumeAttributesClass of driver "+m.Config.DriverName+" in the claim's spec.volumeAttributesClassName"))
	}
	return found.Parameters, nil
}
