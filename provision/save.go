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

// foreignVolumeError says that the name of a volume is taken by the volume of another claim.
type foreignVolumeError struct{ name, claim string }

func (e *foreignVolumeError) Error() string {
	return fmt.Sprintf("PersistentVolume %q exists already and belongs to claim %q", e.name, e.claim)
}

// createVolume writes the PersistentVolume. That it is there already, for the same claim, is success: an
// earlier answer was lost.
func createVolume(ctx context.Context, client kubernetes.Interface, pv *corev1.PersistentVolume) error {
	_, err := client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = findVolume(ctx, client, pv)
	return err
}

// findVolume returns whether the PersistentVolume is in the API, and an error if that cannot be said or if
// it is another claim's.
func findVolume(ctx context.Context, client kubernetes.Interface, pv *corev1.PersistentVolume) (bool, error) {
	have, err := client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read PersistentVolume %q: %w", pv.Name, err)
	}
	if mine, theirs := pv.Spec.ClaimRef, have.Spec.ClaimRef; mine != nil && theirs != nil && mine.UID != theirs.UID {
		return true, &foreignVolumeError{name: pv.Name, claim: theirs.Namespace + "/" + theirs.Name}
	}
	return true, nil
}

// saveVolume takes the next step of saving (or, that failing, deleting) the volume that a call returned.
// The caller holds st.mu.
func (e *engine) saveVolume(ctx context.Context, st *claimState, claim *corev1.PersistentVolumeClaim) {
	s := st.save
	stopping := ctx.Err() != nil
	if e.clock.Now().Before(s.notBefore) && !stopping {
		return
	}
	if s.cleaning {
		if !stopping {
			st.calling = true
			e.calls.Add(string(st.uid))
		}
		return
	}
	if s.span == nil {
		s.span = e.timeline.Begin(st.ref, timelineOwner, timeline.StageSaving, s.volume.Name)
	}
	ctx, cancel := writeContext(ctx)
	defer cancel()
	err := createVolume(ctx, e.client, s.volume)
	switch {
	case err == nil:
		e.volumeSaved(ctx, st, claim)
	case stopping:
		e.logger.Warn("stopped before the volume was saved; the next run will resume", "volume", s.volume.Name, "error", err)
	default:
		e.saveFailed(ctx, st, claim, err)
	}
}

func (e *engine) volumeSaved(ctx context.Context, st *claimState, claim *corev1.PersistentVolumeClaim) {
	name := st.save.volume.Name
	st.saved, st.savedName = e.clock.Now(), name
	class, source := claimClass(st.claim), dataSource(st.claim)
	e.metrics.provisioned.WithLabelValues(class, source).Inc()
	e.metrics.provisionSeconds.WithLabelValues(class, source).Observe(e.clock.Since(st.began).Seconds())
	e.events.Event(st.claim, corev1.EventTypeNormal, reasonProvisioningOK, "Successfully provisioned volume "+name)
	if l := e.settings.saveLimiter; l != nil {
		l.Forget(string(st.uid))
	}
	e.finishSaved(ctx, st, claim)
}

// saveFailed waits for the next try or, once they are used up, has the volume deleted.
func (e *engine) saveFailed(
	ctx context.Context, st *claimState, claim *corev1.PersistentVolumeClaim, err error,
) {
	s := st.save
	s.cause = err
	s.tries++
	e.logger.Warn("cannot save volume", "volume", s.volume.Name, "try", s.tries, "error", err)
	if e.settings.saveLimiter != nil {
		e.events.Event(st.claim, corev1.EventTypeWarning, reasonProvisioningFailed, fmt.Sprintf(
			"Error saving provisioned PV object for claim %s/%s: %v. Will retry.", st.claim.Namespace, st.claim.Name, err))
		e.retrySave(st, e.settings.saveLimiter.When(string(st.uid)))
		return
	}
	if s.tries < e.settings.saveBackoff.Steps {
		e.retrySave(st, s.backoff.Step())
		return
	}
	// The answer to an earlier try may have been lost: never delete what a PersistentVolume names.
	found, err := findVolume(ctx, e.client, s.volume)
	switch {
	case found && err == nil:
		e.volumeSaved(ctx, st, claim)
	case found:
		s.span.End(err)
		st.save = nil
		e.retryLater(st, st.claim, err)
		e.events.Event(st.claim, corev1.EventTypeWarning, reasonProvisioningFailed, err.Error())
	case err != nil:
		e.retrySave(st, s.backoff.Step())
	default:
		s.span.End(s.cause)
		e.events.Event(st.claim, corev1.EventTypeWarning, reasonProvisioningFailed, fmt.Sprintf(
			"Error creating provisioned PV object for claim %s/%s: %v. Deleting the volume.",
			st.claim.Namespace, st.claim.Name, s.cause))
		s.cleaning, s.tries, s.backoff = true, 0, *e.settings.saveBackoff
		st.calling = true
		e.calls.Add(string(st.uid))
	}
}

func (e *engine) retrySave(st *claimState, delay time.Duration) {
	st.save.notBefore = e.clock.Now().Add(delay)
	e.requeue(st.uid, delay)
}
