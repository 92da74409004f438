package provision

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// addIntent makes sure that the intent is on the claim before the provisioner is called for it, and returns
// the claim as it is then. The patch needs no resourceVersion: it adds one list item, whatever else changed.
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
		return nil, false // deleted: the watch will say so
	default:
		if apierrors.IsForbidden(err) {
			err = fmt.Errorf("%w; allow %q to patch persistentvolumeclaims, or switch the intent off "+
				"with the option ClaimIntent", err, e.name)
			e.events.Event(claim, corev1.EventTypeWarning, reasonProvisioningFailed, err.Error())
		}
		e.retryWrite(st, fmt.Errorf("write intent on claim %q: %w", claim.Namespace+"/"+claim.Name, err))
		return nil, false
	}
	e.claimWrites.Forget(string(st.uid))
	st.intent = intentWritten
	if written.DeletionTimestamp != nil {
		// No finalizer can be added to a deleted object, so this one was there before us.
		st.outcome = outcomeUnknown
	}
	return written, true
}

// hasIntent returns whether the claim bears our intent, by the cache or by our own last write.
func (e *engine) hasIntent(st *claimState, claim *corev1.PersistentVolumeClaim) bool {
	return st.intent == intentWritten || st.intent == intentFromCache && e.hasIntentInCache(claim)
}

// removeIntent takes the intent off the claim. It returns false if that has to be tried again.
func (e *engine) removeIntent(ctx context.Context, st *claimState, claim *corev1.PersistentVolumeClaim) bool {
	if !e.hasIntent(st, claim) {
		return true
	}
	if st.intent == intentFromCache && (!e.ownsIntent(claim) || st.ignored && !e.settings.intentOwned) {
		return true // somebody else's
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
	e.claimWrites.Forget(string(st.uid))
	st.intent = intentRemoved
	return true
}

// patchClaim changes metadata of this very claim, not of one created later under its name.
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

// retryWrite has a claim looked at again after a write that the API server did not take.
func (e *engine) retryWrite(st *claimState, err error) {
	delay := e.claimWrites.When(string(st.uid))
	e.logger.Warn("cannot write, will retry", "error", err, "delay", delay)
	e.mark(st, StageQueued, err)
	e.requeue(st.uid, delay)
}
