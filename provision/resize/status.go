package resize

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/internal/expansion"
	"github.com/berth-dev/berth/reconcile"
)

// annPreResize, on a PersistentVolume whose filesystem is still to grow, is the size that it has. Who binds the volume to
// another claim meanwhile (kube-controller-manager) puts it into that claim's status.
const annPreResize = "volume.alpha.kubernetes.io/pre-resize-capacity"

// expansionConditions are the conditions that tell of an expansion.
var expansionConditions = []corev1.PersistentVolumeClaimConditionType{
	corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
	corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError,
}

// statusChange is what is to become of a claim's status.
type statusChange struct {
	// stage of the expansion; "" means that it is over.
	stage corev1.ClaimResourceStatus
	// keep has the stage stay what it is.
	keep bool
	// allocated and capacity are left as they are if nil.
	allocated, capacity *resource.Quantity
	// conditions are all that the claim is to have.
	conditions []corev1.PersistentVolumeClaimCondition
}

// markInProgress says in the claim that a size is asked for. It returns the claim itself if it says so already.
func (r *Resizer) markInProgress(ctx context.Context, claim *corev1.PersistentVolumeClaim, size resource.Quantity,
) (*corev1.PersistentVolumeClaim, error) {
	const stage = corev1.PersistentVolumeClaimControllerResizeInProgress
	asked := claim.Status.AllocatedResources[corev1.ResourceStorage]
	if expansion.ResizeStatus(claim) == stage && asked.Cmp(size) == 0 &&
		expansion.TrueCondition(claim, corev1.PersistentVolumeClaimControllerResizeError) == nil {
		return claim, nil
	}
	// An error that is still there would say that the call which follows has ended.
	return r.write(ctx, claim, statusChange{stage: stage, allocated: &size,
		conditions: r.withCondition(expansion.ConditionsExcept(claim, expansionConditions...), claim, corev1.PersistentVolumeClaimResizing, "")})
}

// markFailed says in the claim what a failed call left behind, where that is known.
func (r *Resizer) markFailed(ctx context.Context, claim *corev1.PersistentVolumeClaim, failed *callError) error {
	if !failed.outcome.isFinal() {
		return nil
	}
	claim, err := r.claims.Get(ctx, claim.Namespace, claim.Name) // with what was written when it began
	if err != nil {
		return fmt.Errorf("note the failed expansion of a claim: %w", err)
	}
	next := statusChange{keep: true, conditions: r.withCondition(
		expansion.ConditionsExcept(claim, corev1.PersistentVolumeClaimControllerResizeError), claim,
		corev1.PersistentVolumeClaimControllerResizeError, failed.Error())}
	if failed.outcome == outcomeInfeasible {
		next.keep, next.stage = false, corev1.PersistentVolumeClaimControllerResizeInfeasible
	}
	_, err = r.write(ctx, claim, next)
	return err
}

// annotateNodesIdle says in the claim of a volume that several nodes share whether they have a part in making it larger. It comes
// before the claim has its new size, which is when the others look. It returns the claim as it is then.
func (r *Resizer) annotateNodesIdle(ctx context.Context, claim *corev1.PersistentVolumeClaim, needed bool,
) (*corev1.PersistentVolumeClaim, error) {
	if !expansion.IsShared(claim) || expansion.RequiredOnEveryNode(claim) == needed {
		return claim, nil
	}
	var idle any = "true"
	if needed {
		idle = nil
	}
	written, err := r.patch(ctx, claim, map[string]any{"annotations": map[string]any{expansion.AnnotationNodeExpansionNotRequired: idle}}, nil)
	if apierrors.IsForbidden(err) { // external-resizer is not allowed to either: then nodes just do what they need not
		r.deps.Logger.Warn("cannot tell nodes whether they have a part in making a volume larger: allow to patch persistentvolumeclaims",
			"claim", claim.Namespace+"/"+claim.Name, "error", err)
		return claim, nil
	}
	return written, err
}

// markPending says in the claim that the node is to do its part.
func (r *Resizer) markPending(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, err := r.write(ctx, claim, statusChange{stage: corev1.PersistentVolumeClaimNodeResizePending, conditions: r.withCondition(
		expansion.ConditionsExcept(claim, corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimFileSystemResizePending),
		claim, corev1.PersistentVolumeClaimFileSystemResizePending,
		"Waiting for a Pod that uses the claim: the node that it is on makes the file system larger.")})
	return err
}

// markDone says in the claim that it has its new size.
func (r *Resizer) markDone(ctx context.Context, claim *corev1.PersistentVolumeClaim, size resource.Quantity) error {
	_, err := r.write(ctx, claim, statusChange{capacity: &size, conditions: expansion.ConditionsExcept(claim, expansionConditions...)})
	return err
}

// raiseCapacity gives the PersistentVolume its new capacity, and returns what it has then. It never makes it less.
func (r *Resizer) raiseCapacity(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume,
	size resource.Quantity, nodeNeeded bool,
) (resource.Quantity, error) {
	patch := map[string]any{}
	has := pv.Spec.Capacity[corev1.ResourceStorage]
	if size.Cmp(has) > 0 {
		patch["spec"] = map[string]any{"capacity": map[string]any{"storage": size.String()}}
	} else {
		size = has
	}
	metadata := map[string]any{"uid": pv.UID}
	if before := currentSize(claim); nodeNeeded && pv.Annotations[annPreResize] == "" {
		metadata["annotations"] = map[string]any{annPreResize: before.String()}
	} else if len(patch) == 0 {
		return size, nil
	}
	patch["metadata"] = metadata
	return size, r.patchVolume(ctx, pv.Name, patch)
}

// patchVolume changes a PersistentVolume. The patch names the volume's UID.
func (r *Resizer) patchVolume(ctx context.Context, name string, patch map[string]any) error {
	data, err := json.Marshal(patch)
	if err == nil {
		_, err = r.deps.Client.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType, data, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("note in volume %q how large it is: %w", name, err)
	}
	return nil
}

// isComplete reports whether the claim has what it asks for, and nothing tells of an expansion any more.
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

// cleanup takes away what tells of an expansion that is over.
func (r *Resizer) cleanup(ctx context.Context, key reconcile.Request, claim *corev1.PersistentVolumeClaim,
	pv *corev1.PersistentVolume,
) error {
	if left := expansion.ConditionsExcept(claim, expansionConditions...); expansion.ResizeStatus(claim) != "" || len(left) < len(claim.Status.Conditions) {
		if _, err := r.write(ctx, claim, statusChange{conditions: left}); errors.Is(err, errStale) {
			return nil
		} else if err != nil {
			return err
		}
	}
	if _, ok := pv.Annotations[annPreResize]; ok {
		err := r.patchVolume(ctx, pv.Name, map[string]any{"metadata": map[string]any{
			"uid": pv.UID, "annotations": map[string]any{annPreResize: nil}}})
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

// write patches the claim's status, if nobody else has changed the claim since it was read. Otherwise it returns errStale.
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
	return r.patch(ctx, claim, map[string]any{}, status)
}

// patch changes the claim's status, or only its metadata if status is nil, if nobody else has changed the claim since it was
// read. Otherwise it returns errStale.
func (r *Resizer) patch(ctx context.Context, claim *corev1.PersistentVolumeClaim, metadata, status map[string]any,
) (*corev1.PersistentVolumeClaim, error) {
	metadata["uid"], metadata["resourceVersion"] = claim.UID, claim.ResourceVersion
	content := map[string]any{"metadata": metadata}
	var part []string
	if status != nil {
		content["status"], part = status, []string{"status"}
	}
	data, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("note the expansion of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	written, err := r.claims.Patch(ctx, claim.Namespace, claim.Name,
		client.Patch{Type: types.MergePatchType, Data: data}, metav1.PatchOptions{}, part...)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil, errStale
	case err != nil:
		return nil, fmt.Errorf("note the expansion of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return written, nil
}

// withCondition adds a condition that is true, and since when.
func (r *Resizer) withCondition(conditions []corev1.PersistentVolumeClaimCondition, claim *corev1.PersistentVolumeClaim,
	kind corev1.PersistentVolumeClaimConditionType, message string,
) []corev1.PersistentVolumeClaimCondition {
	since := metav1.NewTime(r.deps.Clock.Now())
	if before := expansion.TrueCondition(claim, kind); before != nil {
		since = before.LastTransitionTime
	}
	return append(conditions, corev1.PersistentVolumeClaimCondition{
		Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: since, Message: message})
}
