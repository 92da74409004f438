package groupbinder

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

func without(list []string, remove string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(entry string) bool { return entry == remove })
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

func (b *Binder) patchGroup(ctx context.Context, group *groupapi.VolumeGroupSnapshot, change map[string]any, subresources ...string,
) (*groupapi.VolumeGroupSnapshot, error) {
	data, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return b.groups.Patch(ctx, group.Namespace, group.Name, client.Patch{Type: types.MergePatchType, Data: data}, metav1.PatchOptions{}, subresources...)
}

func (b *Binder) patchContent(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent, change map[string]any,
) (*groupapi.VolumeGroupSnapshotContent, error) {
	data, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return b.contents.Patch(ctx, "", content.Name, client.Patch{Type: types.MergePatchType, Data: data}, metav1.PatchOptions{})
}

// claimContent binds a content that a user created to the VolumeGroupSnapshot that it names.
func (b *Binder) claimContent(ctx context.Context, group *groupapi.VolumeGroupSnapshot, content *groupapi.VolumeGroupSnapshotContent,
) (*groupapi.VolumeGroupSnapshotContent, error) {
	spec := map[string]any{"volumeGroupSnapshotRef": map[string]any{"uid": group.UID}}
	if group.Spec.ClassName != nil && content.Spec.ClassName == nil {
		spec["volumeGroupSnapshotClassName"] = *group.Spec.ClassName
	}
	bound, err := b.patchContent(ctx, content, map[string]any{
		"metadata": map[string]any{"uid": content.UID, "resourceVersion": content.ResourceVersion}, "spec": spec,
	})
	if err != nil {
		return nil, fmt.Errorf("bind VolumeGroupSnapshotContent %q: %w", content.Name, err)
	}
	return bound, nil
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
	if err := b.writeStatus(ctx, group, status); err != nil {
		return err
	}
	if !wasReady && *status.ReadyToUse {
		b.deps.Timeline.Mark(timeline.RefOf(groupapi.KindGroup, group), timelineOwner, "Ready", content.Name, nil)
		b.recorder.Event(objectRef(group), corev1.EventTypeNormal, "GroupSnapshotReady", "Volumes can be created from the snapshots of the group")
	}
	return nil
}

// writeStatus replaces the status. Fields that are not set are removed.
func (b *Binder) writeStatus(ctx context.Context, group *groupapi.VolumeGroupSnapshot, status *groupapi.VolumeGroupSnapshotStatus) error {
	fields := map[string]any{
		"boundVolumeGroupSnapshotContentName": status.BoundContentName, "creationTime": status.CreationTime,
		"readyToUse": status.ReadyToUse, "error": status.Error,
	}
	if status.Error != nil { // a merge patch would keep what an earlier error had and this one has not
		fields["error"] = map[string]any{"time": status.Error.Time, "message": status.Error.Message}
	}
	_, err := b.patchGroup(ctx, group, map[string]any{"metadata": map[string]any{"uid": group.UID}, "status": fields}, "status")
	if err != nil {
		return fmt.Errorf("update the status of VolumeGroupSnapshot %s/%s: %w", group.Namespace, group.Name, err)
	}
	return nil
}

// report writes a problem into the VolumeGroupSnapshot's status and records an event, once as long as it stays the same.
func (b *Binder) report(ctx context.Context, key reconcile.Request, wrong *problem) error {
	group, err := b.groups.Get(ctx, key.Namespace, key.Name)
	if err != nil {
		return err
	}
	message := wrong.Error()
	if group.Status != nil && group.Status.Error != nil && ptr.Deref(group.Status.Error.Message, "") == message &&
		!ptr.Deref(group.Status.ReadyToUse, false) {
		return nil
	}
	status := &groupapi.VolumeGroupSnapshotStatus{}
	if group.Status != nil {
		status = group.Status.DeepCopy()
	}
	status.ReadyToUse = ptr.To(false)
	status.Error = &api.Error{Time: ptr.To(metav1.NewTime(b.deps.Clock.Now())), Message: &message}
	b.deps.Logger.Warn("cannot bind a group snapshot", "groupSnapshot", key.String(), "reason", wrong.reason, "error", wrong)
	b.deps.Timeline.Mark(timeline.RefOf(groupapi.KindGroup, group), timelineOwner, "Binding", wrong.reason, wrong)
	b.recorder.Event(objectRef(group), corev1.EventTypeWarning, wrong.reason, message)
	return b.writeStatus(ctx, group, status)
}
