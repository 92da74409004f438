package binder

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/shared"
	"github.com/berth-dev/berth/timeline"
)

// patchClaim replaces the finalizers of a claim. Its errors are retried.
func (b *Binder) patchClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim, finalizers []string) error {
	data, err := json.Marshal(shared.FinalizersPatch(claim, finalizers))
	if err != nil {
		return err
	}
	_, err = b.deps.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, data, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("update the finalizers of claim %q: %s", claim.Name, err.Error()) // no event of it comes: a conflict is retried
	}
	return nil
}

// claimContent binds a content that a user created to the VolumeSnapshot that it names.
func (b *Binder) claimContent(ctx context.Context, s *api.VolumeSnapshot, content *api.VolumeSnapshotContent,
) (*api.VolumeSnapshotContent, error) {
	spec := map[string]any{"volumeSnapshotRef": map[string]any{"uid": s.UID}}
	if s.Spec.ClassName != nil && content.Spec.ClassName == nil {
		spec["volumeSnapshotClassName"] = *s.Spec.ClassName
	}
	return b.binding.Contents.PatchSpec(ctx, content, spec)
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
		b.Recorder().Event(b.binding.Requests.RefOf(s), corev1.EventTypeNormal, "SnapshotCreated", "The driver has taken the snapshot")
	}
	if !wasReady && snapshot.IsReady(updated) {
		b.deps.Timeline.Mark(timeline.RefOf(api.KindSnapshot, s), timelineOwner, "Ready", content.Name, nil)
		b.Recorder().Event(b.binding.Requests.RefOf(s), corev1.EventTypeNormal, "SnapshotReady", "Volumes can be created from the snapshot")
	}
	return updated, nil
}

// writeStatus replaces the status. Fields that are not set are removed.
func (b *Binder) writeStatus(ctx context.Context, s *api.VolumeSnapshot, status *api.VolumeSnapshotStatus,
) (*api.VolumeSnapshot, error) {
	return b.binding.Requests.PatchStatus(ctx, s, map[string]any{
		"boundVolumeSnapshotContentName": status.BoundContentName, "creationTime": status.CreationTime,
		"readyToUse": status.ReadyToUse, "restoreSize": status.RestoreSize, "error": shared.ErrorField(status.Error),
	})
}
