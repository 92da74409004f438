package modify

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/expansion"
	"github.com/berth-dev/berth/provision/claimwork"
)

// markInProgress writes into the claim's status that the class is being applied. It returns the same claim if the status says
// so already.
func (m *Modifier) markInProgress(ctx context.Context, claim *corev1.PersistentVolumeClaim, class string,
) (*corev1.PersistentVolumeClaim, error) {
	if isUnknown(claim) && claim.Status.ModifyVolumeStatus.TargetVolumeAttributesClassName == class {
		return claim, nil
	}
	return m.PatchStatus(ctx, claim, map[string]any{
		"modifyVolumeStatus": corev1.ModifyVolumeStatus{
			TargetVolumeAttributesClassName: class, Status: corev1.PersistentVolumeClaimModifyVolumeInProgress},
		"conditions": m.conditions(claim, corev1.PersistentVolumeClaimVolumeModifyingVolume, "The driver is applying the VolumeAttributesClass "+class+"."),
	})
}

// markFailed writes into the claim's status what a failed try left behind.
func (m *Modifier) markFailed(ctx context.Context, claim *corev1.PersistentVolumeClaim, class string, failed *claimwork.Failure) error {
	claim, err := m.Claims.Get(ctx, claim.Namespace, claim.Name) // as markInProgress wrote it
	if err != nil {
		return fmt.Errorf("record failed modification of claim: %w", err)
	}
	next := corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: class}
	kind, message := corev1.PersistentVolumeClaimVolumeModifyVolumeError, failed.Error()
	switch failed.Outcome {
	case claimwork.Infeasible:
		next.Status = corev1.PersistentVolumeClaimModifyVolumeInfeasible
	case claimwork.Final:
		next.Status = corev1.PersistentVolumeClaimModifyVolumeInProgress
	case claimwork.Pending:
		next.Status = corev1.PersistentVolumeClaimModifyVolumePending
	case claimwork.Unknown:
		// Not ModifyVolumeError, which means that the call has ended.
		next.Status, kind = corev1.PersistentVolumeClaimModifyVolumeInProgress, corev1.PersistentVolumeClaimVolumeModifyingVolume
		message = "The result is unknown; the call is repeated: " + message
	default:
		return nil
	}
	if isUnknown(claim) && claim.Status.ModifyVolumeStatus.TargetVolumeAttributesClassName != class {
		// Nothing was sent this time, and the result of an earlier call remains unknown.
		next, kind = *claim.Status.ModifyVolumeStatus, corev1.PersistentVolumeClaimVolumeModifyingVolume
	}
	if begun, said := claim.Status.ModifyVolumeStatus, expansion.TrueCondition(claim, kind); begun != nil && *begun == next &&
		said != nil && said.Message == message {
		return nil
	}
	_, err = m.PatchStatus(ctx, claim, map[string]any{"modifyVolumeStatus": next, "conditions": m.conditions(claim, kind, message)})
	return err
}

// giveUp removes a modification that is not wanted any more from the claim's status.
func (m *Modifier) giveUp(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, err := m.PatchStatus(ctx, claim, map[string]any{
		"modifyVolumeStatus": nil, "conditions": expansion.ConditionsExcept(claim, modifyConditions...)})
	return err
}

// markDone writes into the claim's status that the volume has the class.
func (m *Modifier) markDone(ctx context.Context, claim *corev1.PersistentVolumeClaim, class string) error {
	_, err := m.PatchStatus(ctx, claim, map[string]any{
		"modifyVolumeStatus": nil, "currentVolumeAttributesClassName": class,
		"conditions": expansion.ConditionsExcept(claim, modifyConditions...)})
	return err
}

// recordClass writes the class into the PersistentVolume.
func (m *Modifier) recordClass(ctx context.Context, pv *corev1.PersistentVolume, class string) error {
	if have := pv.Spec.VolumeAttributesClassName; have != nil && *have == class {
		return nil
	}
	return m.PatchVolume(ctx, pv, map[string]any{}, map[string]any{"volumeAttributesClassName": class})
}

// conditions returns the claim's conditions, those of modifications replaced by one that is true, with the time of its last
// transition.
func (m *Modifier) conditions(claim *corev1.PersistentVolumeClaim, kind corev1.PersistentVolumeClaimConditionType, message string,
) []corev1.PersistentVolumeClaimCondition {
	return m.WithCondition(expansion.ConditionsExcept(claim, modifyConditions...), claim, kind, message)
}
