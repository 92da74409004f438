package expand

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/berth-dev/berth/internal/expansion"
	"github.com/berth-dev/berth/volume"
)

// markInProgress sets the stage of the claim to NodeResizeInProgress.
func (e *Expander) markInProgress(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if expansion.ResizeStatus(claim) != corev1.PersistentVolumeClaimNodeResizePending {
		return nil
	}
	err := e.patchStatus(ctx, claim, func(current *corev1.PersistentVolumeClaim) map[string]any {
		if expansion.ResizeStatus(current) != corev1.PersistentVolumeClaimNodeResizePending {
			return nil
		}
		return map[string]any{"allocatedResourceStatuses": map[string]any{
			"storage": corev1.PersistentVolumeClaimNodeResizeInProgress}}
	})
	if err != nil {
		return fmt.Errorf("mark expansion of claim %s/%s as in progress: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// markFinished writes the new size into the claim's status and removes the stage and its conditions. It reports whether
// the status had a smaller size until now. If a resizer works on a still larger size, its stage is kept.
func (e *Expander) markFinished(ctx context.Context, spec volume.Spec) (updated bool, err error) {
	size := spec.PV.Spec.Capacity[corev1.ResourceStorage]
	err = e.patchStatus(ctx, spec.PVC, func(claim *corev1.PersistentVolumeClaim) map[string]any {
		known := claim.Status.Capacity[corev1.ResourceStorage]
		if updated = known.Cmp(size) < 0; !updated {
			return nil // updated for another Pod
		}
		status := map[string]any{"capacity": map[string]any{"storage": size.String()}}
		removed := []corev1.PersistentVolumeClaimConditionType{
			corev1.PersistentVolumeClaimFileSystemResizePending, corev1.PersistentVolumeClaimNodeResizeError}
		if !isControllerStage(claim) {
			removed = append(removed, corev1.PersistentVolumeClaimResizing)
			status["allocatedResourceStatuses"] = map[string]any{"storage": nil}
		}
		status["conditions"] = expansion.ConditionsExcept(claim, removed...)
		return status
	})
	if err != nil {
		return false, fmt.Errorf("mark expansion of claim %s/%s as finished: %w", spec.PVC.Namespace, spec.PVC.Name, err)
	}
	return updated, nil
}

// isControllerStage reports whether the stage of the claim belongs to the resizer.
func isControllerStage(claim *corev1.PersistentVolumeClaim) bool {
	return strings.HasPrefix(string(expansion.ResizeStatus(claim)), "Controller")
}

// markFailed writes the error of an attempt with a certain outcome into the claim's status. If the claim requests another size by now, the
// stage is that of an infeasible expansion, too: the resizer then decides which size the node is to try next (KEP-1790).
func (e *Expander) markFailed(ctx context.Context, spec volume.Spec, failed error) {
	if volume.IsUncertain(failed) {
		return
	}
	claim, tried := spec.PVC, spec.PV.Spec.Capacity[corev1.ResourceStorage]
	err := e.patchStatus(ctx, claim, func(claim *corev1.PersistentVolumeClaim) map[string]any {
		changed := expansion.ResizeStatus(claim) != "" && !claim.Spec.Resources.Requests.Storage().Equal(tried)
		infeasible := (volume.IsInfeasible(failed) || changed) && !isControllerStage(claim)
		since := metav1.NewTime(e.deps.Clock.Now())
		for _, c := range claim.Status.Conditions {
			if c.Type == corev1.PersistentVolumeClaimNodeResizeError {
				if c.Message == failed.Error() && !infeasible {
					return nil // the status is up to date
				}
				since = c.LastTransitionTime
			}
		}
		conditions := append(expansion.ConditionsExcept(claim, corev1.PersistentVolumeClaimNodeResizeError),
			corev1.PersistentVolumeClaimCondition{
				Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue,
				LastTransitionTime: since, Message: failed.Error(),
			})
		status := map[string]any{"conditions": conditions}
		if infeasible {
			status["allocatedResourceStatuses"] = map[string]any{"storage": corev1.PersistentVolumeClaimNodeResizeInfeasible}
		}
		return status
	})
	if err != nil && ctx.Err() == nil {
		e.deps.Logger.Info("failed to write the error of an expansion into its claim", "claim", claim.Name,
			"namespace", claim.Namespace, "error", err)
	}
}

// patchStatus patches the status of a claim with the result of change, which gets the current claim and returns nil for
// no change.
func (e *Expander) patchStatus(ctx context.Context, claim *corev1.PersistentVolumeClaim,
	change func(*corev1.PersistentVolumeClaim) map[string]any,
) error {
	claims := e.deps.Client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		current, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status := change(current)
		if status == nil {
			return nil
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": claim.UID, "resourceVersion": current.ResourceVersion}, "status": status})
		if err != nil {
			return err
		}
		_, err = claims.Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}
