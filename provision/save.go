package provision

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/timeline"
)

// foreignVolumeError is the error for a volume whose name the volume of another claim has.
type foreignVolumeError struct{ name, claim string }

func (e *foreignVolumeError) Error() string {
	return fmt.Sprintf("PersistentVolume %q exists already and belongs to claim %q", e.name, e.claim)
}

// createVolume creates the PersistentVolume. It succeeds if the volume exists already, for the same claim: the response to
// an earlier request was lost.
func createVolume(ctx context.Context, client kubernetes.Interface, pv *corev1.PersistentVolume) error {
	_, err := client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = findVolume(ctx, client, pv)
	return err
}

// findVolume returns whether the PersistentVolume exists, and an error if that is unknown or if it is another claim's.
func findVolume(ctx context.Context, client kubernetes.Interface, pv *corev1.PersistentVolume) (bool, error) {
	have, err := client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get PersistentVolume %q: %w", pv.Name, err)
	}
	if want, ref := pv.Spec.ClaimRef, have.Spec.ClaimRef; want != nil && ref != nil && want.UID != ref.UID {
		return true, &foreignVolumeError{name: pv.Name, claim: ref.Namespace + "/" + ref.Name}
	}
	return true, nil
}

// saveVolume tries to create the PersistentVolume of the volume that a call returned. It returns whether it exists. The
// caller holds st.mu.
func (e *engine) saveVolume(ctx context.Context, st *claimState) (saved bool) {
	unsaved := st.unsaved
	stopping := ctx.Err() != nil
	if unsaved.span == nil {
		unsaved.span = e.timeline.Begin(st.ref, timelineOwner, timeline.StageSaving, unsaved.volume.Name)
	}
	ctx, cancel := writeContext(ctx)
	defer cancel()
	err := createVolume(ctx, e.client, unsaved.volume)
	switch {
	case err == nil:
		e.onCreated(st)
		return true
	case stopping:
		e.logger.Warn("stopped before the volume was saved; the next run resumes", "volume", unsaved.volume.Name, "error", err)
		return false
	}
	return e.onSaveFailed(ctx, st, err)
}

// onCreated reports that the PersistentVolume exists.
func (e *engine) onCreated(st *claimState) {
	name, claim := st.unsaved.volume.Name, st.attempt.claim
	st.saved = savedVolume{name: name, at: e.clock.Now()}
	class, source := claimClass(claim), dataSource(claim)
	e.metrics.provisioned.WithLabelValues(class, source).Inc()
	e.metrics.provisionSeconds.WithLabelValues(class, source).Observe(e.clock.Since(st.unsaved.callStart).Seconds())
	e.events.Event(claim, corev1.EventTypeNormal, reasonProvisioningOK, "Successfully provisioned volume "+name)
	if l := e.settings.saveLimiter; l != nil {
		l.Forget(string(st.uid))
	}
}

// onSaveFailed waits for the next try or, once the tries are used up, deletes the volume. It returns true if the
// PersistentVolume exists all the same.
func (e *engine) onSaveFailed(ctx context.Context, st *claimState, err error) (saved bool) {
	unsaved, claim := st.unsaved, st.attempt.claim
	unsaved.err = err
	unsaved.tries++
	e.logger.Warn("failed to save volume", "volume", unsaved.volume.Name, "try", unsaved.tries, "error", err)
	if e.settings.saveLimiter != nil {
		e.events.Event(claim, corev1.EventTypeWarning, reasonProvisioningFailed, fmt.Sprintf(
			"Error saving provisioned PV object for claim %s/%s: %v. Will retry.", claim.Namespace, claim.Name, err))
		e.pause(st, e.settings.saveLimiter.When(string(st.uid)))
		return false
	}
	if unsaved.tries < e.settings.saveBackoff.Steps {
		e.pause(st, unsaved.backoff.Step())
		return false
	}
	// The response to an earlier try may have been lost: never delete what a PersistentVolume names.
	found, err := findVolume(ctx, e.client, unsaved.volume)
	switch {
	case found && err == nil:
		e.onCreated(st)
		return true
	case found:
		unsaved.span.End(err)
		e.provisionAgain(st, claim, err)
		e.events.Event(claim, corev1.EventTypeWarning, reasonProvisioningFailed, err.Error())
	case err != nil:
		e.pause(st, unsaved.backoff.Step())
	default:
		unsaved.span.End(unsaved.err)
		e.events.Event(claim, corev1.EventTypeWarning, reasonProvisioningFailed, fmt.Sprintf(
			"Error creating provisioned PV object for claim %s/%s: %v. Deleting the volume.",
			claim.Namespace, claim.Name, unsaved.err))
		unsaved.tries, unsaved.backoff = 0, *e.settings.saveBackoff
		e.queueCall(st)
	}
	return false
}

// pause waits before the next try to save or to delete the volume.
func (e *engine) pause(st *claimState, delay time.Duration) {
	st.unsaved.notBefore = e.clock.Now().Add(delay)
	e.requeue(st.uid, delay)
}
