package provision

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/berth-dev/berth/timeline"
)

// volumeStep is what to do for a volume.
type volumeStep int

const (
	volumeIdle volumeStep = iota
	volumeDelete
	volumeAddFinalizer
	volumeRemoveFinalizer
)

// volumeStates holds, by name, the state of volumes that are being deleted.
type volumeStates struct {
	mu     sync.Mutex
	byName map[string]*volumeState
}

// volumeState is owned by the worker that has the volume's key, except for resync and notified, which mu guards.
type volumeState struct {
	uid    types.UID
	retry  retry
	resync bool
	// notified is set when the provisioner notifies that a deletion may succeed.
	notified bool
	// storageDeleted is set once the provisioner deleted the storage: it is not called again.
	storageDeleted bool
}

func newVolumeStates() *volumeStates { return &volumeStates{byName: map[string]*volumeState{}} }

func (m *volumeStates) remove(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byName, name)
}

func (m *volumeStates) resync(name string, happened bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if vs := m.byName[name]; vs != nil && happened {
		vs.resync = true
	}
}

// all returns the names of the volumes whose deletion was tried.
func (m *volumeStates) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.byName))
}

// notify records that a deletion may succeed now. It returns false if none was tried.
func (m *volumeStates) notify(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	vs := m.byName[name]
	if vs != nil {
		vs.notified = true
	}
	return vs != nil
}

// get returns the state of the volume with this UID, and whether a resync came since the last call. A notification since
// then ends the wait for a retry.
func (m *volumeStates) get(name string, uid types.UID) (*volumeState, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	vs := m.byName[name]
	if vs == nil || vs.uid != uid {
		vs = &volumeState{uid: uid}
		m.byName[name] = vs
	}
	resync := vs.resync
	if vs.notified {
		vs.retry.reset()
	}
	vs.resync, vs.notified = false, false
	return vs, resync
}

// isOurs returns whether this provisioner made the volume.
func (e *engine) isOurs(pv *corev1.PersistentVolume) bool {
	by, ok := pv.Annotations[storagehelpers.AnnDynamicallyProvisioned]
	return ok && e.serves(by)
}

// reclaims returns whether this provisioner deletes the storage of the volume: it made it, or the PersistentVolume was made by hand
// for a CSI driver of its name, for whose storage Kubernetes has no other deleter.
func (e *engine) reclaims(pv *corev1.PersistentVolume) bool {
	if _, provisioned := pv.Annotations[storagehelpers.AnnDynamicallyProvisioned]; provisioned {
		return e.isOurs(pv)
	}
	return pv.Spec.CSI != nil && e.serves(pv.Spec.CSI.Driver)
}

// isLeftToMigration returns whether Kubernetes leaves the deletion of a released volume to this provisioner because the volume's in-tree
// plugin is migrated to it, but it does not stand in for that plugin.
func (e *engine) isLeftToMigration(pv *corev1.PersistentVolume) bool {
	to, migrated := pv.Annotations[storagehelpers.AnnMigratedTo]
	return migrated && e.serves(to) && !e.reclaims(pv) && pv.Status.Phase == corev1.VolumeReleased &&
		pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete && pv.DeletionTimestamp == nil
}

// volumeStep returns what to do for a volume that this provisioner reclaims.
func (e *engine) volumeStep(pv *corev1.PersistentVolume) volumeStep {
	has := slices.Contains(pv.Finalizers, finalizerVolume)
	policyDelete := pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	mayDelete := func() bool {
		guard, ok := e.provisioner.(DeletionGuard)
		return !ok || guard.ShouldDelete(pv)
	}
	switch {
	case policyDelete && pv.Status.Phase == corev1.VolumeReleased && (pv.DeletionTimestamp == nil || has):
		if mayDelete() {
			return volumeDelete
		}
	case has && (!policyDelete || !e.settings.addFinalizer):
		return volumeRemoveFinalizer
	case !has && policyDelete && e.settings.addFinalizer && pv.DeletionTimestamp == nil &&
		pv.Status.Phase == corev1.VolumeBound && mayDelete(): // otherwise nothing would remove it
		return volumeAddFinalizer
	}
	return volumeIdle
}

// syncVolume does what comes next for a volume.
func (e *engine) syncVolume(ctx context.Context, name string) {
	pv := e.volumes.get(name)
	if ctx.Err() != nil || pv == nil || !e.reclaims(pv) {
		return
	}
	var err error
	switch e.volumeStep(pv) {
	case volumeDelete:
		e.deleteVolume(ctx, pv)
		return
	case volumeAddFinalizer:
		err = e.patchVolume(ctx, pv, "finalizers")
	case volumeRemoveFinalizer:
		err = e.patchVolume(ctx, pv, "$deleteFromPrimitiveList/finalizers")
	}
	if err != nil {
		e.retryVolume(pv.Name, fmt.Errorf("change finalizer of volume %q: %w", pv.Name, err))
		return
	}
	e.limits.volumeWrites.Forget(name)
}

// deleteVolume deletes the storage of a released volume, and then the object.
func (e *engine) deleteVolume(ctx context.Context, cached *corev1.PersistentVolume) {
	vs, resync := e.deletions.get(cached.Name, cached.UID)
	inputs := volumeFingerprint(cached)
	now := e.clock.Now()
	if vs.retry.readiness(now, inputs, resync) != readyNow {
		if left := vs.retry.left(now); left > 0 {
			e.queues.volumes.AddAfter(cached.Name, left) // of several times for one key the queue keeps the earliest
		}
		return
	}
	fresh, err := e.client.CoreV1().PersistentVolumes().Get(ctx, cached.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return
	case err != nil:
		e.retryVolume(cached.Name, fmt.Errorf("get volume %q: %w", cached.Name, err))
		return
	case fresh.UID != cached.UID || !e.reclaims(fresh) || e.volumeStep(fresh) != volumeDelete:
		return // the watch brings it back
	}
	vs.retry.start(inputs)
	if !vs.storageDeleted && !e.reclaim(ctx, fresh, vs) {
		return
	}
	if err := e.removeVolume(ctx, fresh); err != nil {
		e.retryVolume(fresh.Name, err)
		return
	}
	e.limits.volumeWrites.Forget(fresh.Name)
}

// reclaim calls the provisioner and returns whether the storage is gone.
func (e *engine) reclaim(ctx context.Context, pv *corev1.PersistentVolume, vs *volumeState) bool {
	class := pv.Spec.StorageClassName
	span := e.timeline.Begin(timeline.RefOf(volumeKind, pv), timelineOwner, timeline.StageReclaim, "")
	if claim := pv.Spec.ClaimRef; claim != nil {
		span.SetCause(timeline.Ref{Kind: claimKind, Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID})
	}
	start := e.clock.Now()
	err := e.callDelete(ctx, pv)
	span.End(err)
	var ignored *IgnoredError
	switch {
	case err == nil:
		e.metrics.deleted.WithLabelValues(class).Inc()
		e.metrics.deleteSeconds.WithLabelValues(class).Observe(e.clock.Since(start).Seconds())
		vs.storageDeleted = true
		vs.retry.succeeded()
		e.limits.volumes.Forget(pv.Name)
		return true
	case errors.As(err, &ignored):
		e.logger.Info("provisioner ignores volume", "volume", pv.Name, "reason", ignored.Reason)
		vs.retry.park()
		return false
	}
	e.metrics.deleteFailed.WithLabelValues(class).Inc()
	e.events.Event(pv, corev1.EventTypeWarning, reasonVolumeFailedDelete, err.Error())
	if vs.retry.failed(e.settings.failedDeleteThreshold) {
		e.limits.volumes.Forget(pv.Name)
		text := fmt.Sprintf("gave up deleting after %d retries: %v; it is tried again when the volume changes",
			e.settings.failedDeleteThreshold, err)
		if period := e.settings.resyncPeriod; period > 0 {
			text += fmt.Sprintf(", and once every %v", period)
		}
		e.events.Event(pv, corev1.EventTypeWarning, reasonVolumeFailedDelete, text)
		return false
	}
	delay := e.limits.volumes.When(pv.Name)
	vs.retry.backOff(e.clock.Now(), delay)
	e.queues.volumes.AddAfter(pv.Name, delay)
	return false
}

// removeVolume deletes the object whose storage does not exist any more, and removes our finalizer.
func (e *engine) removeVolume(ctx context.Context, pv *corev1.PersistentVolume) error {
	ctx, cancel := writeContext(ctx)
	defer cancel()
	if pv.DeletionTimestamp == nil {
		err := e.client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{
			Preconditions: metav1.NewUIDPreconditions(string(pv.UID)),
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete volume %q: %w", pv.Name, err)
		}
	}
	if !slices.Contains(pv.Finalizers, finalizerVolume) {
		return nil
	}
	if err := e.patchVolume(ctx, pv, "$deleteFromPrimitiveList/finalizers"); err != nil {
		return fmt.Errorf("remove finalizer of volume %q: %w", pv.Name, err)
	}
	return nil
}

// patchVolume adds or removes our finalizer, whatever else changes. It succeeds if the volume does not exist any more.
func (e *engine) patchVolume(ctx context.Context, pv *corev1.PersistentVolume, field string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pv.UID, field: []string{finalizerVolume},
	}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	ctx, cancel := writeContext(ctx)
	defer cancel()
	_, err = e.client.CoreV1().PersistentVolumes().Patch(
		ctx, pv.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// retryVolume requeues a volume after a request to the API server failed.
func (e *engine) retryVolume(name string, err error) {
	delay := e.limits.volumeWrites.When(name)
	e.logger.Warn("failed to sync volume; retrying", "error", err, "delay", delay)
	e.queues.volumes.AddAfter(name, delay)
}
