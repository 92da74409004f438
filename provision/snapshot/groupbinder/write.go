package groupbinder

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/provision/snapshot/shared"
	"github.com/berth-dev/berth/timeline"
)

// claimContent binds a content that a user created to the VolumeGroupSnapshot that it names.
func (b *Binder) claimContent(ctx context.Context, group *groupapi.VolumeGroupSnapshot, content *groupapi.VolumeGroupSnapshotContent,
) (*groupapi.VolumeGroupSnapshotContent, error) {
	spec := map[string]any{"volumeGroupSnapshotRef": map[string]any{"uid": group.UID}}
	if group.Spec.ClassName != nil && content.Spec.ClassName == nil {
		spec["volumeGroupSnapshotClassName"] = *group.Spec.ClassName
	}
	return b.binding.Contents.PatchSpec(ctx, content, spec)
}

// copyStatus writes what the content says into the status of its VolumeGroupSnapshot.
func (b *Binder) copyStatus(ctx context.Context, group *groupapi.VolumeGroupSnapshot, content *groupapi.VolumeGroupSnapshotContent) error {
	status := &groupapi.VolumeGroupSnapshotStatus{BoundContentName: &content.Name, ReadyToUse: ptr.To(false)}
	if from := content.Status; from != nil {
		status.CreationTime, status.Error = from.CreationTime.DeepCopy(), from.Error.DeepCopy()
		status.ReadyToUse = ptr.To(ptr.Deref(from.ReadyToUse, false))
	}
	if equality.Semantic.DeepEqual(group.Status, status) {
		return nil
	}
	wasReady := group.Status != nil && ptr.Deref(group.Status.ReadyToUse, false)
	_, err := b.binding.Requests.PatchStatus(ctx, group, map[string]any{
		"boundVolumeGroupSnapshotContentName": status.BoundContentName, "creationTime": status.CreationTime,
		"readyToUse": status.ReadyToUse, "error": shared.ErrorField(status.Error),
	})
	if err != nil {
		return err
	}
	if !wasReady && *status.ReadyToUse {
		b.deps.Timeline.Mark(timeline.RefOf(groupapi.KindGroup, group), timelineOwner, "Ready", content.Name, nil)
		b.Recorder().Event(b.binding.Requests.RefOf(group), corev1.EventTypeNormal, "GroupSnapshotReady",
			"Volumes can be created from the snapshots of the group")
	}
	return nil
}
