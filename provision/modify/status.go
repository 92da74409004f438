package modify

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/internal/expansion"
)

// markInProgress writes into the claim's status that the class is being applied. It returns the same claim if the status says
// so already.
func (m *Modifier) markInProgress(ctx context.Context, claim *corev1.PersistentVolumeClaim, class string,
) (*corev1.PersistentVolumeClaim, error) {
	if isUnknown(claim) && claim.Status.ModifyVolumeStatus.TargetVolumeAttributesClassName == class {
		return claim, nil
	}
	return m.write(ctx, claim, map[string]any{
		"modifyVolumeStatus": corev1.ModifyVolumeStatus{
			TargetVolumeAttributesClassName: class, Status: corev1.PersistentVolumeClaimModifyVolumeInProgress},
		"conditions": m.conditions(claim, corev1.PersistentVolumeClaimVolumeModifyingVolume, "The driver is applying the VolumeAttributesClass "+class+"."),
	})
}

// markFailed writes into the claim's status what a failed try left behind.
func (m *Modifier) markFailed(ctx context.Context, claim *corev1.PersistentVolumeClaim, class string, failed *callError) error {
	claim, err := m.claims.Get(ctx, claim.Namespace, claim.Name) // as markInProgress wrote it
	if err != nil {
		return fmt.Errorf("record failed modification of claim: %w", err)
	}
	next := corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: class}
	kind, message := corev1.PersistentVolumeClaimVolumeModifyVolumeError, failed.Error()
	switch failed.outcome {
	case outcomeInfeasible:
		next.Status = corev1.PersistentVolumeClaimModifyVolumeInfeasible
	case outcomeFinal:
		next.Status = corev1.PersistentVolumeClaimModifyVolumeInProgress
	case outcomePending:
		next.Status = corev1.PersistentVolumeClaimModifyVolumePending
	case outcomeUnknown:
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
	_, err = m.write(ctx, claim, map[string]any{"modifyVolumeStatus": next, "conditions": m.conditions(claim, kind, message)})
	return err
}

// giveUp removes a modification that is not wanted any more from the claim's status.
func (m *Modifier) giveUp(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, err := m.write(ctx, claim, map[string]any{
		"modifyVolumeStatus": nil, "conditions": expansion.ConditionsExcept(claim, modifyConditions...)})
	return err
}

// markDone writes into the claim's status that the volume has the class.
func (m *Modifier) markDone(ctx context.Context, claim *corev1.PersistentVolumeClaim, class string) error {
	_, err := m.write(ctx, claim, map[string]any{
		"modifyVolumeStatus": nil, "currentVolumeAttributesClassName": class,
		"conditions": expansion.ConditionsExcept(claim, modifyConditions...)})
	return err
}

// recordClass writes the class into the PersistentVolume.
func (m *Modifier) recordClass(ctx context.Context, pv *corev1.PersistentVolume, class string) error {
	if have := pv.Spec.VolumeAttributesClassName; have != nil && *have == class {
		return nil
	}
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pv.UID}, "spec": map[string]any{"volumeAttributesClassName": class}})
	if err == nil {
		_, err = m.deps.Client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, data, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("record VolumeAttributesClass %q of volume %q: %w", class, pv.Name, err)
	}
	return nil
}

// write patches the claim's status. It returns errStale if the claim has changed since it was read.
func (m *Modifier) write(ctx context.Context, claim *corev1.PersistentVolumeClaim, status map[string]any,
) (*corev1.PersistentVolumeClaim, error) {
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion}, "status": status})
	if err != nil {
		return nil, fmt.Errorf("record modification of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	written, err := m.claims.Patch(ctx, claim.Namespace, claim.Name,
		client.Patch{Type: types.MergePatchType, Data: data}, metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil, errStale
	case err != nil:
		return nil, fmt.Errorf("record modification of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return written, nil
}

// conditions returns the claim's conditions, those of modifications replaced by one that is true, with the time of its last
// transition.
func (m *Modifier) conditions(claim *corev1.PersistentVolumeClaim, kind corev1.PersistentVolumeClaimConditionType, message string,
) []corev1.PersistentVolumeClaimCondition {
	since := metav1.NewTime(m.deps.Clock.Now())
	if before := expansion.TrueCondition(claim, kind); before != nil {
		since = before.LastTransitionTime
	}
	return append(expansion.ConditionsExcept(claim, modifyConditions...), corev1.PersistentVolumeClaimCondition{
		Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: since, Message: message})
}
