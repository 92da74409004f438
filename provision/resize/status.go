package resize

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/internal/expansion"
	"github.com/berth-dev/berth/provision/claimwork"
	"github.com/berth-dev/berth/reconcile"
)

// annPreResize, on a PersistentVolume whose file system is not expanded yet, is the size of the file system. If
// kube-controller-manager binds the volume to another claim meanwhile, it writes this size into that claim's status.
const annPreResize = "volume.alpha.kubernetes.io/pre-resize-capacity"

// expansionConditions are the conditions of an expansion.
var expansionConditions = []corev1.PersistentVolumeClaimConditionType{
	corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
	corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError,
}

// statusChange is a change of a claim's status.
type statusChange struct {
	// stage of the expansion; "" removes it.
	stage corev1.ClaimResourceStatus
	// keep leaves the stage unchanged.
	keep bool
	// allocated and capacity are not changed if nil.
	allocated, capacity *resource.Quantity
	// conditions replace those of the claim.
	conditions []corev1.PersistentVolumeClaimCondition
}

// markInProgress writes into the claim's status that the size is being requested. It returns the same claim if the status
// says so already.
func (r *Resizer) markInProgress(ctx context.Context, claim *corev1.PersistentVolumeClaim, size resource.Quantity,
) (*corev1.PersistentVolumeClaim, error) {
	const stage = corev1.PersistentVolumeClaimControllerResizeInProgress
	allocated := claim.Status.AllocatedResources[corev1.ResourceStorage]
	if expansion.ResizeStatus(claim) == stage && allocated.Cmp(size) == 0 &&
		expansion.TrueCondition(claim, corev1.PersistentVolumeClaimControllerResizeError) == nil {
		return claim, nil
	}
	// A remaining error condition would mean that the call which follows has ended.
	return r.write(ctx, claim, statusChange{stage: stage, allocated: &size,
		conditions: r.WithCondition(expansion.ConditionsExcept(claim, expansionConditions...), claim, corev1.PersistentVolumeClaimResizing, "")})
}

// markFailed writes into the claim's status what a failed call left behind, if the error is final.
func (r *Resizer) markFailed(ctx context.Context, claim *corev1.PersistentVolumeClaim, failed *claimwork.Failure) error {
	if !failed.Outcome.IsFinal() {
		return nil
	}
	claim, err := r.Claims.Get(ctx, claim.Namespace, claim.Name) // as markInProgress wrote it
	if err != nil {
		return fmt.Errorf("record failed expansion of claim: %w", err)
	}
	next := statusChange{keep: true, conditions: r.WithCondition(
		expansion.ConditionsExcept(claim, corev1.PersistentVolumeClaimControllerResizeError), claim,
		corev1.PersistentVolumeClaimControllerResizeError, failed.Error())}
	if failed.Outcome == claimwork.Infeasible {
		next.keep, next.stage = false, corev1.PersistentVolumeClaimControllerResizeInfeasible
	}
	_, err = r.write(ctx, claim, next)
	return err
}

// annotateNodesIdle annotates the claim of a volume that several nodes share with whether they have to expand it. It is
// written before the claim's new size, which makes the nodes act. It returns the claim as written.
func (r *Resizer) annotateNodesIdle(ctx context.Context, claim *corev1.PersistentVolumeClaim, needed bool,
) (*corev1.PersistentVolumeClaim, error) {
	if !expansion.IsShared(claim) || expansion.RequiredOnEveryNode(claim) == needed {
		return claim, nil
	}
	var idle any = "true"
	if needed {
		idle = nil
	}
	written, err := r.PatchMetadata(ctx, claim, map[string]any{"annotations": map[string]any{expansion.AnnotationNodeExpansionNotRequired: idle}})
	if apierrors.IsForbidden(err) { // external-resizer has no such right either; then nodes try an expansion that is not needed
		r.Deps.Logger.Warn("not allowed to patch persistentvolumeclaims; nodes cannot skip an expansion that is not needed",
			"claim", claim.Namespace+"/"+claim.Name, "error", err)
		return claim, nil
	}
	return written, err
}

// markPending writes into the claim's status that node expansion is required.
func (r *Resizer) markPending(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, err := r.write(ctx, claim, statusChange{stage: corev1.PersistentVolumeClaimNodeResizePending, conditions: r.WithCondition(
		expansion.ConditionsExcept(claim, corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimFileSystemResizePending),
		claim, corev1.PersistentVolumeClaimFileSystemResizePending,
		"Waiting for a Pod that uses the claim: its node expands the file system.")})
	return err
}

// markDone writes the new capacity into the claim's status.
func (r *Resizer) markDone(ctx context.Context, claim *corev1.PersistentVolumeClaim, size resource.Quantity) error {
	_, err := r.write(ctx, claim, statusChange{capacity: &size, conditions: expansion.ConditionsExcept(claim, expansionConditions...)})
	return err
}

// raiseCapacity raises the PersistentVolume's capacity to the size, and returns the capacity. It never lowers it.
func (r *Resizer) raiseCapacity(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume,
	size resource.Quantity, nodeNeeded bool,
) (resource.Quantity, error) {
	var spec map[string]any
	has := pv.Spec.Capacity[corev1.ResourceStorage]
	if size.Cmp(has) > 0 {
		spec = map[string]any{"capacity": map[string]any{"storage": size.String()}}
	} else {
		size = has
	}
	metadata := map[string]any{}
	if before := currentSize(claim); nodeNeeded && pv.Annotations[annPreResize] == "" {
		metadata["annotations"] = map[string]any{annPreResize: before.String()}
	} else if spec == nil {
		return size, nil
	}
	return size, r.PatchVolume(ctx, pv, metadata, spec)
}

// isComplete reports whether the claim has what it requests, and nothing is left of an expansion.
func (r *Resizer) isComplete(key reconcile.Request, claim *corev1.PersistentVolumeClaim) bool {
	want, have := requestedSize(claim), currentSize(claim)
	if want.Cmp(have) > 0 || expansion.ResizeStatus(claim) != "" {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cleaned[key] == cleanedMark(claim)
}

func cleanedMark(claim *corev1.PersistentVolumeClaim) string {
	have := currentSize(claim)
	return string(claim.UID) + " " + have.String()
}

// cleanup removes what an expansion that is over left in the claim and in its volume.
func (r *Resizer) cleanup(ctx context.Context, key reconcile.Request, claim *corev1.PersistentVolumeClaim,
	pv *corev1.PersistentVolume,
) error {
	if left := expansion.ConditionsExcept(claim, expansionConditions...); expansion.ResizeStatus(claim) != "" || len(left) < len(claim.Status.Conditions) {
		if _, err := r.write(ctx, claim, statusChange{conditions: left}); errors.Is(err, claimwork.ErrStale) {
			return nil
		} else if err != nil {
			return err
		}
	}
	if _, ok := pv.Annotations[annPreResize]; ok {
		err := r.PatchVolume(ctx, pv, map[string]any{"annotations": map[string]any{annPreResize: nil}}, nil)
		if err != nil {
			return err
		}
	}
	r.succeeded(key, pv.Name)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleaned[key] = cleanedMark(claim)
	return nil
}

// write patches the claim's status. It returns claimwork.ErrStale if the claim has changed since it was read.
func (r *Resizer) write(ctx context.Context, claim *corev1.PersistentVolumeClaim, next statusChange,
) (*corev1.PersistentVolumeClaim, error) {
	status := map[string]any{"conditions": next.conditions}
	switch {
	case next.keep:
	case next.stage == "":
		status["allocatedResourceStatuses"] = map[string]any{"storage": nil}
	default:
		status["allocatedResourceStatuses"] = map[string]any{"storage": next.stage}
	}
	if next.allocated != nil {
		status["allocatedResources"] = map[string]any{"storage": next.allocated.String()}
	}
	if next.capacity != nil {
		status["capacity"] = map[string]any{"storage": next.capacity.String()}
	}
	return r.PatchStatus(ctx, claim, status)
}
