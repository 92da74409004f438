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

	"github.com/berth-dev/berth/timeline"
)

// onProvisioned takes in what a Provision call came to. The caller holds st.mu.
func (e *engine) onProvisioned(st *claimState, in callInput, result callResult) {
	var ignored *IgnoredError
	st.ignored = errors.As(result.err, &ignored)
	switch {
	case result.err == nil:
		st.outcome, st.began, st.node = outcomeUnknown, result.began, result.node
		st.save = &saving{volume: e.volumeFor(result.volume, in)}
		if b := e.settings.saveBackoff; b != nil {
			st.save.backoff = *b
		}
		return
	case st.ignored:
		e.logger.Info("claim ignored", "claim", in.claim.Namespace+"/"+in.claim.Name, "reason", ignored.Reason)
		e.clearOutcome(st)
		st.retry.park()
		return
	}
	switch result.state {
	case ProvisioningInBackground:
		st.outcome, st.node = outcomeUnknown, result.node
	case ProvisioningNoChange:
	default:
		e.clearOutcome(st)
	}
	e.metrics.provisionFailed.WithLabelValues(claimClass(in.claim), dataSource(in.claim)).Inc()
	text := fmt.Sprintf("failed to provision volume with StorageClass %q: %v", claimClass(in.claim), result.err)
	if pause := e.infeasibleDelay(result.err); pause > 0 {
		text += fmt.Sprintf("; the request is refused as it stands: it will be made again when the claim, its StorageClass or "+
			"its selected node changes, otherwise not before %v have passed", pause)
	}
	e.events.Event(in.claim, corev1.EventTypeWarning, reasonProvisioningFailed, text)
	if result.state == ProvisioningReschedule {
		st.retry.park() // until the annotation's removal, and then another node, come by the watch
		return
	}
	e.retryLater(st, in.claim, result.err)
}

// clearOutcome notes that no volume exists. The next call begins afresh.
func (e *engine) clearOutcome(st *claimState) {
	st.outcome, st.class, st.node = outcomeNone, nil, nil
}

// infeasibleDelay is how long, at least, a request that failed so must not be made again unchanged.
func (e *engine) infeasibleDelay(err error) time.Duration {
	var infeasible *InfeasibleError
	if errors.As(err, &infeasible) {
		return e.settings.infeasibleInterval
	}
	return 0
}

// retryLater has the claim tried again after its backoff, or gives up. The caller holds st.mu.
func (e *engine) retryLater(st *claimState, claim *corev1.PersistentVolumeClaim, cause error) {
	key := string(st.uid)
	if !st.retry.failed(e.settings.failedProvisionThreshold) {
		delay := max(e.claimLimiter.When(key), e.infeasibleDelay(cause))
		st.retry.backOff(e.clock.Now(), delay)
		e.requeue(st.uid, delay)
		return
	}
	e.claimLimiter.Forget(key)
	text := fmt.Sprintf("gave up provisioning after %d retries: %v; it will be tried again when the claim, "+
		"its StorageClass or its selected node changes", e.settings.failedProvisionThreshold, cause)
	if period := e.settings.resyncPeriod; period > 0 {
		text += fmt.Sprintf(", and once every %v", period)
	}
	if st.outcome == outcomeUnknown {
		text += "; a volume may exist, so the claim is kept until that is known"
	}
	e.events.Event(claim, corev1.EventTypeWarning, reasonProvisioningFailed, text)
	e.mark(st, timeline.StageProvisioning, errors.New(text))
}

// onVolumeCleaned takes in what deleting a volume that could not be saved came to. The caller holds st.mu.
func (e *engine) onVolumeCleaned(st *claimState, err error) {
	s := st.save
	var ignored *IgnoredError
	if err != nil && !errors.As(err, &ignored) {
		if s.tries++; s.tries < max(e.settings.saveBackoff.Steps, 1) {
			delay := s.backoff.Step()
			s.notBefore = e.clock.Now().Add(delay)
			e.requeue(st.uid, delay)
			return
		}
		e.events.Event(st.claim, corev1.EventTypeWarning, reasonCleanupFailed, fmt.Sprintf(
			"Error cleaning provisioned volume for claim %s/%s: %v. Please delete manually.",
			st.claim.Namespace, st.claim.Name, err))
		// The volume is still there. It is not forgotten: the intent stays and provisioning is repeated.
		st.save = nil
		e.retryLater(st, st.claim, s.cause)
		return
	}
	st.save = nil
	e.clearOutcome(st)
	e.retryLater(st, st.claim, s.cause)
}

// clearSelectedNode takes the selected node off the claim, so that the scheduler selects another one.
func (e *engine) clearSelectedNode(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	key := annSelectedNode
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
