package provision

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// addIntent adds the intent, our finalizer, to the claim before the provisioner is called for it. It returns the claim as
// written, and false if it failed. The patch needs no resourceVersion: it adds one list item, whatever else changed.
func (e *engine) addIntent(
	ctx context.Context, st *claimState, claim *corev1.PersistentVolumeClaim,
) (*corev1.PersistentVolumeClaim, bool) {
	if !e.settings.claimIntent || st.intent == intentWritten {
		return claim, true
	}
	if e.hasIntentInCache(claim) && st.intent == intentFromCache {
		return claim, true
	}
	ctx, cancel := writeContext(ctx)
	defer cancel()
	written, err := e.patchClaim(ctx, claim, map[string]any{"finalizers": []string{e.settings.intentFinalizer}})
	switch {
	case err == nil:
	case apierrors.IsNotFound(err):
		return nil, false // deleted: the watch brings it back
	default:
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("%w; allow %q to patch persistentvolumeclaims, or switch the intent off "+
				"with the option ClaimIntent", err, e.name)
			e.events.Event(claim, corev1.EventTypeWarning, reasonProvisioningFailed, err.Error())
		}
		e.retryWrite(st, fmt.Errorf("write intent on claim %q: %w", claim.Namespace+"/"+claim.Name, err))
		return nil, false
	}
	e.limits.claimWrites.Forget(string(st.uid))
	st.intent = intentWritten
	if written.DeletionTimestamp != nil {
		// No finalizer can be added to a deleted object, so this one was there before us.
		st.outcome = outcomeUnknown
	}
	return written, true
}

// hasIntent returns whether the claim has our intent, by the cache or by our own last write.
func (e *engine) hasIntent(st *claimState, claim *corev1.PersistentVolumeClaim) bool {
	return st.intent == intentWritten || st.intent == intentFromCache && e.hasIntentInCache(claim)
}

// removeIntent removes the intent from the claim. It returns false if that has to be tried again.
func (e *engine) removeIntent(ctx context.Context, st *claimState, claim *corev1.PersistentVolumeClaim) bool {
	if !e.hasIntent(st, claim) {
		return true
	}
	if st.intent == intentFromCache && (!e.ownsIntent(claim) || st.outcome == outcomeIgnored && !e.settings.intentOwned) {
		return true // another controller's
	}
	ctx, cancel := writeContext(ctx)
	defer cancel()
	_, err := e.patchClaim(ctx, claim, map[string]any{
		"$deleteFromPrimitiveList/finalizers": []string{e.settings.intentFinalizer},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		e.retryWrite(st, fmt.Errorf("remove intent from claim %q: %w", claim.Namespace+"/"+claim.Name, err))
		return false
	}
	e.limits.claimWrites.Forget(string(st.uid))
	st.intent = intentRemoved
	return true
}

// ownsIntent returns whether the claim has an intent that this controller has to finish. Where several controllers share
// one finalizer, it has to be a claim that this one would provision for.
func (e *engine) ownsIntent(claim *corev1.PersistentVolumeClaim) bool {
	return e.hasIntentInCache(claim) && (e.settings.intentOwned || e.isOurClaim(claim))
}

func (e *engine) hasIntentInCache(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Finalizers, e.settings.intentFinalizer)
}

// patchClaim patches metadata of this claim, not of one created later with the same name.
func (e *engine) patchClaim(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, metadata map[string]any,
) (*corev1.PersistentVolumeClaim, error) {
	metadata["uid"] = claim.UID
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	return e.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(
		ctx, claim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
}

// retryWrite requeues a claim after a write that failed.
func (e *engine) retryWrite(st *claimState, err error) {
	delay := e.limits.claimWrites.When(string(st.uid))
	e.logger.Warn("failed to write claim; retrying", "error", err, "delay", delay)
	e.mark(st, StageQueued, err)
	e.requeue(st.uid, delay)
}
