package binder

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

func without(list []string, remove ...string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(entry string) bool { return slices.Contains(remove, entry) })
}

// finalizersPatch replaces the finalizers of the object as it was read.
func finalizersPatch(obj metav1.Object, finalizers []string) map[string]any {
	return map[string]any{"metadata": map[string]any{
		"uid": obj.GetUID(), "resourceVersion": obj.GetResourceVersion(), "finalizers": finalizers,
	}}
}

// annotationPatch sets an annotation that marks a state.
func annotationPatch(annotation string) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": map[string]any{annotation: snapshot.AnnYes}}}
}

func mergePatch(change map[string]any) (client.Patch, error) {
	data, err := json.Marshal(change)
	return client.Patch{Type: types.MergePatchType, Data: data}, err
}

func (b *Binder) patchSnapshot(ctx context.Context, s *api.VolumeSnapshot, change map[string]any, subresources ...string,
) (*api.VolumeSnapshot, error) {
	patch, err := mergePatch(change)
	if err != nil {
		return nil, err
	}
	return b.snapshots.Patch(ctx, s.Namespace, s.Name, patch, metav1.PatchOptions{}, subresources...)
}

func (b *Binder) patchContent(ctx context.Context, content *api.VolumeSnapshotContent, change map[string]any) error {
	patch, err := mergePatch(change)
	if err != nil {
		return err
	}
	_, err = b.contents.Patch(ctx, "", content.Name, patch, metav1.PatchOptions{})
	return err
}

// patchClaim replaces the finalizers of a claim. Its errors are retried.
func (b *Binder) patchClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, finalizers []string) error {
	patch, err := mergePatch(finalizersPatch(claim, finalizers))
	if err != nil {
		return err
	}
	_, err = b.deps.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, patch.Type, patch.Data, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("update the finalizers of claim %q: %s", claim.Name, err.Error()) // no event of it comes: a conflict is retried
	}
	return nil
}

// addFinalizers returns the VolumeSnapshot with its finalizers.
func (b *Binder) addFinalizers(ctx context.Context, s *api.VolumeSnapshot) (*api.VolumeSnapshot, error) {
	wanted := slices.Clone(s.Finalizers)
	for _, finalizer := range []string{snapshot.FinalizerSource, snapshot.FinalizerBound} {
		if !slices.Contains(wanted, finalizer) {
			wanted = append(wanted, finalizer)
		}
	}
	if len(wanted) == len(s.Finalizers) {
		return s, nil
	}
	return b.patchSnapshot(ctx, s, finalizersPatch(s, wanted))
}

// claimContent binds a content that a user created to the VolumeSnapshot that it names.
func (b *Binder) claimContent(ctx context.Context, s *api.VolumeSnapshot, content *api.VolumeSnapshotContent,
) (*api.VolumeSnapshotContent, error) {
	spec := map[string]any{"volumeSnapshotRef": map[string]any{"uid": s.UID}}
	if s.Spec.ClassName != nil && content.Spec.ClassName == nil {
		spec["volumeSnapshotClassName"] = *s.Spec.ClassName
	}
	patch, err := mergePatch(map[string]any{
		"metadata": map[string]any{"uid": content.UID, "resourceVersion": content.ResourceVersion}, "spec": spec,
	})
	if err != nil {
		return nil, err
	}
	bound, err := b.contents.Patch(ctx, "", content.Name, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("bind VolumeSnapshotContent %q: %w", content.Name, err)
	}
	return bound, nil
}

// statusOf returns the status of a VolumeSnapshot that is bound to the content.
func statusOf(s *api.VolumeSnapshot, content *api.VolumeSnapshotContent) *api.VolumeSnapshotStatus {
	status := &api.VolumeSnapshotStatus{BoundContentName: &content.Name, ReadyToUse: ptr.To(false)}
	if s.Status != nil {
		status.GroupName = s.Status.GroupName
	}
	from := content.Status
	if from == nil {
		return status
	}
	if from.CreationTime != nil {
		status.CreationTime = ptr.To(metav1.NewTime(time.Unix(0, *from.CreationTime)))
	}
	if from.RestoreSize != nil {
		status.RestoreSize = resource.NewQuantity(*from.RestoreSize, resource.BinarySI)
	}
	if from.ReadyToUse != nil {
		status.ReadyToUse = ptr.To(*from.ReadyToUse)
	}
	status.Error = from.Error.DeepCopy()
	return status
}

// copyStatus writes what the content says into the status of its VolumeSnapshot.
func (b *Binder) copyStatus(ctx context.Context, s *api.VolumeSnapshot, content *api.VolumeSnapshotContent,
) (*api.VolumeSnapshot, error) {
	status := statusOf(s, content)
	if s.Status != nil && s.Status.CreationTime != nil && status.CreationTime != nil && s.Status.CreationTime.Unix() == status.CreationTime.Unix() {
		status.CreationTime = s.Status.CreationTime // the API has seconds
	}
	if equality.Semantic.DeepEqual(s.Status, status) {
		return s, nil
	}
	wasReady, wasCreated := snapshot.IsReady(s), s.Status != nil && s.Status.CreationTime != nil
	updated, err := b.writeStatus(ctx, s, status)
	if err != nil {
		return nil, err
	}
	if !wasCreated && status.CreationTime != nil {
		b.recorder.Event(objectRef(s), corev1.EventTypeNormal, "SnapshotCreated", "The driver has taken the snapshot")
	}
	if !wasReady && snapshot.IsReady(updated) {
		b.deps.Timeline.Mark(timeline.RefOf(api.KindSnapshot, s), timelineOwner, "Ready", content.Name, nil)
		b.recorder.Event(objectRef(s), corev1.EventTypeNormal, "SnapshotReady", "Volumes can be created from the snapshot")
	}
	return updated, nil
}

// writeStatus replaces the status. Fields that are not set are removed.
func (b *Binder) writeStatus(ctx context.Context, s *api.VolumeSnapshot, status *api.VolumeSnapshotStatus,
) (*api.VolumeSnapshot, error) {
	fields := map[string]any{
		"boundVolumeSnapshotContentName": status.BoundContentName, "creationTime": status.CreationTime,
		"readyToUse": status.ReadyToUse, "restoreSize": status.RestoreSize, "error": status.Error,
	}
	if status.Error != nil { // a merge patch would keep what an earlier error had and this one has not
		fields["error"] = map[string]any{"time": status.Error.Time, "message": status.Error.Message}
	}
	updated, err := b.patchSnapshot(ctx, s, map[string]any{"metadata": map[string]any{"uid": s.UID}, "status": fields}, "status")
	if err != nil {
		return nil, fmt.Errorf("update the status of VolumeSnapshot %s/%s: %w", s.Namespace, s.Name, err)
	}
	return updated, nil
}

// report writes a problem into the VolumeSnapshot's status and records an event, once as long as it stays the same.
func (b *Binder) report(ctx context.Context, key reconcile.Request, wrong *problem) error {
	s, err := b.snapshots.Get(ctx, key.Namespace, key.Name)
	if err != nil {
		return err
	}
	message := wrong.Error()
	if s.Status != nil && s.Status.Error != nil && ptr.Deref(s.Status.Error.Message, "") == message && !ptr.Deref(s.Status.ReadyToUse, false) {
		return nil
	}
	status := &api.VolumeSnapshotStatus{}
	if s.Status != nil {
		status = s.Status.DeepCopy()
	}
	status.ReadyToUse = ptr.To(false)
	status.Error = &api.Error{Time: ptr.To(metav1.NewTime(b.deps.Clock.Now())), Message: &message}
	b.deps.Logger.Warn("cannot bind a snapshot", "snapshot", key.String(), "reason", wrong.reason, "error", wrong)
	b.deps.Timeline.Mark(timeline.RefOf(api.KindSnapshot, s), timelineOwner, "Binding", wrong.reason, wrong)
	b.recorder.Event(objectRef(s), corev1.EventTypeWarning, wrong.reason, message)
	_, err = b.writeStatus(ctx, s, status)
	return err
}
