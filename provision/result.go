package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/berth-dev/berth/timeline"
)

// onProvisioned stores the result of a call that provisions a volume. The caller holds st.mu.
func (e *engine) onProvisioned(st *claimState, in callInput, result callResult) {
	if st.outcome == outcomeIgnored {
		st.outcome = outcomeNone
	}
	var ignored *IgnoredError
	switch {
	case result.err == nil:
		st.outcome, st.attempt.node = outcomeUnknown, result.node
		st.unsaved = &unsavedVolume{volume: e.volumeFor(result.volume, in), callStart: result.start}
		if b := e.settings.saveBackoff; b != nil {
			st.unsaved.backoff = *b
		}
		st.enter(phaseSaving, e.clock.Now())
		return
	case errors.As(result.err, &ignored):
		e.logger.Info("provisioner ignores claim", "claim", in.claim.Namespace+"/"+in.claim.Name, "reason", ignored.Reason)
		st.outcome, st.attempt = outcomeIgnored, attempt{}
		st.retry.park()
		return
	}
	text := fmt.Sprintf("failed to provision volume with StorageClass %q: %v", claimClass(in.claim), result.err)
	switch result.state {
	case ProvisioningInBackground:
		st.outcome, st.attempt.node = outcomeUnknown, result.node
	case ProvisioningNoChange:
		if st.mayExist() { // for what may lack for ever, as a Secret
			text += "; a volume may exist, so the claim is kept until that is known"
		}
	default:
		st.outcome, st.attempt = outcomeNone, attempt{}
	}
	e.metrics.provisionFailed.WithLabelValues(claimClass(in.claim), dataSource(in.claim)).Inc()
	if delay := e.infeasibleDelay(result.err); delay > 0 {
		text += fmt.Sprintf("; the request is infeasible: it is tried again when the claim, its StorageClass or "+
			"its selected node changes, otherwise after %v at the earliest", delay)
	}
	e.events.Event(in.claim, corev1.EventTypeWarning, reasonProvisioningFailed, text)
	if result.state == ProvisioningReschedule {
		st.retry.park() // until the watch brings the removal of the annotation, and then another node
		return
	}
	e.retryLater(st, in.claim, result.err)
}

// infeasibleDelay returns how long a request that failed with this error waits at least before it is repeated unchanged.
func (e *engine) infeasibleDelay(err error) time.Duration {
	var infeasible *InfeasibleError
	if errors.As(err, &infeasible) {
		return e.settings.infeasibleInterval
	}
	return 0
}

// retryLater retries the claim after its backoff, or gives up. The caller holds st.mu.
func (e *engine) retryLater(st *claimState, claim *corev1.PersistentVolumeClaim, cause error) {
	key := string(st.uid)
	if !st.retry.failed(e.settings.failedProvisionThreshold) {
		delay := max(e.limits.claims.When(key), e.infeasibleDelay(cause))
		st.retry.backOff(e.clock.Now(), delay)
		e.requeue(st.uid, delay)
		return
	}
	e.limits.claims.Forget(key)
	text := fmt.Sprintf("gave up provisioning after %d retries: %v; it is tried again when the claim, "+
		"its StorageClass or its selected node changes", e.settings.failedProvisionThreshold, cause)
	if period := e.settings.resyncPeriod; period > 0 {
		text += fmt.Sprintf(", and once every %v", period)
	}
	if st.mayExist() {
		text += "; a volume may exist, so the claim is kept until that is known"
	}
	e.events.Event(claim, corev1.EventTypeWarning, reasonProvisioningFailed, text)
	e.mark(st, timeline.StageProvisioning, errors.New(text))
}

// onCleaned stores the result of deleting a volume that could not be saved. The caller holds st.mu.
func (e *engine) onCleaned(st *claimState, err error) {
	unsaved, claim := st.unsaved, st.attempt.claim
	var ignored *IgnoredError
	if err == nil || errors.As(err, &ignored) {
		st.outcome, st.attempt = outcomeNone, attempt{}
		e.provisionAgain(st, claim, unsaved.err)
		return
	}
	if unsaved.tries++; unsaved.tries < max(e.settings.saveBackoff.Steps, 1) {
		e.pause(st, unsaved.backoff.Step())
		return
	}
	e.events.Event(claim, corev1.EventTypeWarning, reasonCleanupFailed, fmt.Sprintf(
		"Error cleaning provisioned volume for claim %s/%s: %v. Please delete manually.", claim.Namespace, claim.Name, err))
	// The volume still exists, so the outcome stays unknown: the intent stays, and provisioning is repeated.
	e.provisionAgain(st, claim, unsaved.err)
}

// provisionAgain drops the volume that could not be saved because of err, and retries later.
func (e *engine) provisionAgain(st *claimState, claim *corev1.PersistentVolumeClaim, err error) {
	st.unsaved = nil
	st.enter(phasePending, e.clock.Now())
	e.retryLater(st, claim, err)
}

// clearSelectedNode removes the selected node from the claim, so that the scheduler selects another one.
func (e *engine) clearSelectedNode(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	key := storagehelpers.AnnSelectedNode
	if _, ok := claim.Annotations[key]; !ok {
		key = annAlphaSelectedNode
	}
	path := "/metadata/annotations/" + strings.ReplaceAll(key, "/", "~1")
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": claim.UID},
		{"op": "test", "path": path, "value": claim.Annotations[key]},
		{"op": "remove", "path": path},
	})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	ctx, cancel := writeContext(ctx)
	defer cancel()
	_, err = e.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(
		ctx, claim.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("remove annotation %q from claim %q: %w", key, claim.Namespace+"/"+claim.Name, err)
	}
	return nil
}
