package grouptaker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
)

func (t *Taker) patch(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent, change map[string]any, subresources ...string,
) (*groupapi.VolumeGroupSnapshotContent, error) {
	data, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return t.contents.Patch(ctx, "", content.Name, client.Patch{Type: types.MergePatchType, Data: data}, metav1.PatchOptions{}, subresources...)
}

// annotate sets an annotation, or removes it if value is nil.
func (t *Taker) annotate(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent, annotation string, value *string,
) (*groupapi.VolumeGroupSnapshotContent, error) {
	if now, set := content.Annotations[annotation]; set == (value != nil) && now == ptr.Deref(value, "") {
		return content, nil
	}
	updated, err := t.patch(ctx, content, map[string]any{"metadata": map[string]any{
		"uid": content.UID, "annotations": map[string]any{annotation: value},
	}})
	if err != nil {
		return nil, fmt.Errorf("annotate VolumeGroupSnapshotContent %q: %w", content.Name, err)
	}
	return updated, nil
}

// release removes the finalizer of a content.
func (t *Taker) release(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent) error {
	if !slices.Contains(content.Finalizers, snapshot.FinalizerGroupContent) {
		return nil
	}
	kept := slices.DeleteFunc(slices.Clone(content.Finalizers), func(f string) bool { return f == snapshot.FinalizerGroupContent })
	_, err := t.patch(ctx, content, map[string]any{"metadata": map[string]any{
		"uid": content.UID, "resourceVersion": content.ResourceVersion, "finalizers": kept,
	}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// writeStatus writes what the driver reports.
func (t *Taker) writeStatus(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent, found Group,
) (*groupapi.VolumeGroupSnapshotContent, error) {
	var members []groupapi.SnapshotInfo
	for _, member := range found.Snapshots {
		info := groupapi.SnapshotInfo{VolumeHandle: member.Volume, SnapshotHandle: member.ID, ReadyToUse: ptr.To(member.Ready)}
		if !member.Created.IsZero() {
			info.CreationTime = ptr.To(member.Created.UnixNano())
		}
		if member.Size > 0 {
			info.RestoreSize = ptr.To(member.Size)
		}
		members = append(members, info)
	}
	if now := content.Status; now != nil && ptr.Deref(now.GroupHandle, "") == found.ID && now.Error == nil &&
		now.ReadyToUse != nil && *now.ReadyToUse == found.Ready && equality.Semantic.DeepEqual(now.Snapshots, members) {
		return content, nil
	}
	fields := map[string]any{
		"volumeGroupSnapshotHandle": found.ID, "readyToUse": found.Ready, "volumeSnapshotInfoList": members, "error": nil,
	}
	if !found.Created.IsZero() {
		fields["creationTime"] = metav1.NewTime(found.Created)
	}
	updated, err := t.patch(ctx, content, map[string]any{"metadata": map[string]any{"uid": content.UID}, "status": fields}, "status")
	if err != nil {
		return nil, fmt.Errorf("update the status of VolumeGroupSnapshotContent %q: %w", content.Name, err)
	}
	return updated, nil
}

// report writes an error into the status, once as long as it stays the same, and returns it.
func (t *Taker) report(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent, reason string, failed error) error {
	message := failed.Error()
	if now := content.Status; now != nil && now.Error != nil && ptr.Deref(now.Error.Message, "") == message {
		return failed
	}
	t.recorder.Event(&corev1.ObjectReference{
		APIVersion: groupapi.GroupVersion.String(), Kind: groupapi.KindContent, Name: content.Name, UID: content.UID,
	}, corev1.EventTypeWarning, reason, message)
	_, err := t.patch(ctx, content, map[string]any{"metadata": map[string]any{"uid": content.UID}, "status": map[string]any{
		"error":      map[string]any{"time": metav1.NewTime(t.deps.Clock.Now()), "message": message},
		"readyToUse": isReady(content) && content.DeletionTimestamp == nil,
	}}, "status")
	if err != nil {
		t.deps.Logger.Warn("failed to write the error of a group snapshot into its content", "content", content.Name, "error", err)
	}
	return failed
}
