package taker

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/shared"
	"github.com/berth-dev/berth/timeline"
)

const (
	reasonCreate = "SnapshotCreationFailed"
	reasonDelete = "SnapshotDeleteError"
	reasonRead   = "SnapshotContentCheckandUpdateFailed"
)

func stateOf(content *api.VolumeSnapshotContent) shared.State {
	state := shared.State{Orphan: content.Spec.Source.SnapshotHandle != nil && content.Spec.SnapshotRef.UID == ""}
	if status := content.Status; status != nil {
		state.Ready, state.Error = ptr.Deref(status.ReadyToUse, false), status.Error
	}
	return state
}

// handleOf returns the driver's handle of the snapshot, "" if it is not known yet.
func handleOf(content *api.VolumeSnapshotContent) string {
	if content.Status != nil && content.Status.SnapshotHandle != nil {
		return *content.Status.SnapshotHandle
	}
	return ptr.Deref(content.Spec.Source.SnapshotHandle, "")
}

// take calls the driver for a content that is not ready.
func (t *Taker) take(ctx context.Context, content *api.VolumeSnapshotContent) (ready bool, reason string, err error) {
	switch {
	case snapshot.IsMember(content):
		if handleOf(content) == "" {
			return false, "", shared.ErrNothingToDo // the group's controller writes it
		}
	case content.Spec.Source.VolumeHandle != nil:
		ready, err = t.create(ctx, content) // idempotent: it also reads whether the snapshot is ready
		return ready, reasonCreate, err
	}
	ready, err = t.read(ctx, content)
	return ready, reasonRead, err
}

// delete deletes the snapshot, as the policy says, and then releases the content. A snapshot of a group is deleted with it.
func (t *Taker) delete(ctx context.Context, content *api.VolumeSnapshotContent) error {
	if handle := handleOf(content); handle != "" && content.Spec.DeletionPolicy == api.Delete && !snapshot.IsMember(content) {
		span := t.deps.Timeline.Begin(refOf(content), timelineOwner, "Deleting", handle)
		err := t.deps.Driver.DeleteSnapshot(ctx, handle, snapshot.DeletionSecret(content))
		span.End(err)
		if err != nil {
			return fmt.Errorf("delete snapshot %q: %w", handle, err)
		}
		t.deps.Logger.Info("deleted snapshot", "content", content.Name, "snapshot", handle)
	}
	_, err := t.taking.RemoveFinalizers(ctx, content, snapshot.FinalizerContent)
	return err
}

// create takes the snapshot of a volume.
func (t *Taker) create(ctx context.Context, content *api.VolumeSnapshotContent) (ready bool, err error) {
	name, ok := snapshot.DriverName(content)
	if !ok || content.Spec.Source.VolumeHandle == nil {
		return false, errors.New("spec.volumeSnapshotRef has no uid: the content is not of a VolumeSnapshot")
	}
	request := CreateRequest{Name: name, Volume: *content.Spec.Source.VolumeHandle}
	class, err := t.classOf(ctx, content)
	if err != nil {
		return false, err
	}
	if class != nil {
		if request.Parameters, err = snapshot.DriverParameters(class.Parameters); err != nil {
			return false, fmt.Errorf("VolumeSnapshotClass %q: %w", class.Name, err)
		}
		if request.Secret, err = snapshot.ResolveSecret(class, snapshot.SecretSnapshotter, content.Name, content.Spec.SnapshotRef); err != nil {
			return false, err
		}
	}
	if t.config.ExtraCreateMetadata {
		request.Parameters = snapshot.AddMetadata(request.Parameters, content)
	}
	content, taken, err := shared.Call(ctx, t.taking, content, handleOf(content) != "", func() (Snapshot, error) {
		span := t.deps.Timeline.Begin(refOf(content), timelineOwner, "Taking", "")
		span.AddWait(controller.QueueWait(ctx))
		taken, err := t.deps.Driver.CreateSnapshot(ctx, request)
		span.End(err)
		return taken, err
	})
	if err == nil && taken.ID == "" {
		err = errors.New("the driver reports success, but no snapshot_id")
	}
	if err != nil {
		return false, fmt.Errorf("take a snapshot of volume %q: %w", request.Volume, err)
	}
	if content, err = t.writeStatus(ctx, content, taken); err != nil {
		return false, err
	}
	if _, err = t.taking.Annotate(ctx, content, snapshot.AnnBeingCreated, nil); err != nil {
		return false, err
	}
	t.deps.Logger.Info("took snapshot", "content", content.Name, "snapshot", taken.ID, "ready", taken.Ready)
	return taken.Ready, nil
}

// read reads a snapshot that a user made known.
func (t *Taker) read(ctx context.Context, content *api.VolumeSnapshotContent) (ready bool, err error) {
	handle := handleOf(content)
	if handle == "" {
		return false, errors.New("spec.source names neither a volume nor a snapshot")
	}
	class, err := t.classOf(ctx, content)
	if err != nil {
		return false, err
	}
	var secret *corev1.SecretReference
	if snapshot.IsMember(content) {
		secret = snapshot.DeletionSecret(content) // it names no class
	}
	if class != nil {
		if secret, err = snapshot.ResolveSecret(class, snapshot.SecretList, content.Name, content.Spec.SnapshotRef); err != nil {
			return false, err
		}
	}
	found, err := t.deps.Driver.GetSnapshot(ctx, handle, secret)
	if err != nil {
		return false, fmt.Errorf("read snapshot %q: %w", handle, err)
	}
	found.ID = handle
	if _, err := t.writeStatus(ctx, content, found); err != nil {
		return false, err
	}
	return found.Ready, nil
}

// classOf returns the class of a content, nil if it names none.
func (t *Taker) classOf(ctx context.Context, content *api.VolumeSnapshotContent) (*api.VolumeSnapshotClass, error) {
	return shared.ClassOf(ctx, "VolumeSnapshotClass", content.Spec.ClassName, t.deps.Snapshots.VolumeSnapshotClasses().Get)
}

// writeStatus writes what the driver reports.
func (t *Taker) writeStatus(ctx context.Context, content *api.VolumeSnapshotContent, found Snapshot) (*api.VolumeSnapshotContent, error) {
	fields := map[string]any{"snapshotHandle": found.ID, "readyToUse": found.Ready, "error": nil}
	switch {
	case !found.Created.IsZero():
		fields["creationTime"] = found.Created.UnixNano()
	case content.Status == nil || content.Status.CreationTime == nil:
		// The driver does not say. As with external-snapshotter, it is now: for clients the time says that the snapshot has been taken.
		fields["creationTime"] = t.deps.Clock.Now().UnixNano()
	}
	if found.Size > 0 {
		fields["restoreSize"] = found.Size
	}
	if found.Group != "" { // it is deleted with the group, not alone
		fields["volumeGroupSnapshotHandle"] = found.Group
	}
	if now := content.Status; now != nil && ptr.Deref(now.SnapshotHandle, "") == found.ID && now.Error == nil &&
		now.ReadyToUse != nil && *now.ReadyToUse == found.Ready && (found.Group == "" || ptr.Deref(now.GroupHandle, "") == found.Group) {
		return content, nil
	}
	return t.taking.PatchStatus(ctx, content, fields)
}

// refOf returns the VolumeSnapshot of a content, as timelines name it.
func refOf(content *api.VolumeSnapshotContent) timeline.Ref {
	ref := content.Spec.SnapshotRef
	return timeline.Ref{Kind: api.KindSnapshot, Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
}
