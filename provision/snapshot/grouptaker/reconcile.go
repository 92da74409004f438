package grouptaker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/provision/snapshot/shared"
	"github.com/berth-dev/berth/timeline"
)

// The reasons of events, as external-snapshotter has them.
const (
	reasonCreate = "GroupSnapshotCreationFailed"
	reasonDelete = "GroupSnapshotDeleteError"
	reasonRead   = "GroupSnapshotContentCheckandUpdateFailed"
)

func stateOf(content *groupapi.VolumeGroupSnapshotContent) shared.State {
	state := shared.State{Orphan: content.Spec.Source.Handles != nil && content.Spec.GroupRef.UID == ""}
	if status := content.Status; status != nil {
		state.Ready, state.Error = ptr.Deref(status.ReadyToUse, false), status.Error
	}
	return state
}

// handlesOf returns the driver's handles of the group and of its snapshots, "" if they are not known yet.
func handlesOf(content *groupapi.VolumeGroupSnapshotContent) (group string, snapshots []string) {
	if source := content.Spec.Source.Handles; source != nil {
		group, snapshots = source.Group, source.Snapshots
	}
	status := content.Status
	if status == nil || status.GroupHandle == nil {
		return group, snapshots
	}
	if len(status.Snapshots) > 0 {
		snapshots = nil
		for _, member := range status.Snapshots {
			snapshots = append(snapshots, member.SnapshotHandle)
		}
	}
	return *status.GroupHandle, snapshots
}

// take calls the driver for a content that is not ready.
func (t *Taker) take(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent) (ready bool, reason string, err error) {
	if len(content.Spec.Source.VolumeHandles) > 0 {
		ready, err = t.create(ctx, content) // idempotent: it also reads whether the group is ready
		return ready, reasonCreate, err
	}
	ready, err = t.read(ctx, content)
	return ready, reasonRead, err
}

// delete deletes the group, as the policy says, and then releases the content.
func (t *Taker) delete(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent) error {
	if handle, snapshots := handlesOf(content); handle != "" && content.Spec.DeletionPolicy == api.Delete {
		span := t.deps.Timeline.Begin(refOf(content), timelineOwner, "Deleting", handle)
		err := t.deps.Driver.DeleteGroup(ctx, handle, snapshots, snapshot.GroupDeletionSecret(content))
		span.End(err)
		if err != nil {
			return fmt.Errorf("delete group snapshot %q: %w", handle, err)
		}
		t.deps.Logger.Info("deleted group snapshot", "content", content.Name, "groupSnapshot", handle)
	}
	_, err := t.taking.RemoveFinalizers(ctx, content, snapshot.FinalizerGroupContent)
	return err
}

// create takes the snapshots of a group of volumes.
func (t *Taker) create(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent) (ready bool, err error) {
	request, err := t.requestOf(ctx, content)
	if err != nil {
		return false, err
	}
	handle, _ := handlesOf(content)
	content, taken, err := shared.Call(ctx, t.taking, content, handle != "", func() (Group, error) {
		span := t.deps.Timeline.Begin(refOf(content), timelineOwner, "Taking", "")
		span.AddWait(controller.QueueWait(ctx))
		taken, err := t.deps.Driver.CreateGroup(ctx, request)
		span.End(err)
		return taken, err
	})
	if err == nil {
		err = checkGroup(taken, request.Volumes)
	}
	if err != nil {
		return false, fmt.Errorf("take a group snapshot of %d volumes: %w", len(request.Volumes), err)
	}
	if content, err = t.writeStatus(ctx, content, taken); err != nil {
		return false, err
	}
	if _, err = t.taking.Annotate(ctx, content, snapshot.AnnGroupBeingCreated, nil); err != nil {
		return false, err
	}
	t.deps.Logger.Info("took group snapshot", "content", content.Name, "groupSnapshot", taken.ID, "ready", taken.Ready)
	return taken.Ready, nil
}

// checkGroup returns an error if the driver did not take one snapshot of each volume.
func checkGroup(taken Group, volumes []string) error {
	if taken.ID == "" {
		return errors.New("the driver reports success, but no group_snapshot_id")
	}
	var sources []string
	for _, member := range taken.Snapshots {
		sources = append(sources, member.Volume)
	}
	if err := checkMembers(taken); err != nil {
		return err
	}
	slices.Sort(sources)
	if want := slices.Sorted(slices.Values(volumes)); !slices.Equal(sources, want) {
		return fmt.Errorf("the driver reports success, but snapshots of volumes %q instead of %q", sources, want)
	}
	return nil
}

// checkMembers returns an error if a snapshot of the group has no ID, or one that another one has, too: it would be of another volume.
func checkMembers(reported Group) error {
	known := map[string]string{}
	for _, member := range reported.Snapshots {
		if member.ID == "" {
			return fmt.Errorf("the driver reports success, but no snapshot_id of volume %q", member.Volume)
		}
		if other, twice := known[member.ID]; twice {
			return fmt.Errorf("the driver reports success, but snapshot %q of both volume %q and volume %q", member.ID, other, member.Volume)
		}
		known[member.ID] = member.Volume
	}
	return nil
}

// requestOf returns the request for a content.
func (t *Taker) requestOf(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent) (CreateRequest, error) {
	name, ok := snapshot.GroupDriverName(content)
	if !ok {
		return CreateRequest{}, errors.New("spec.volumeGroupSnapshotRef has no uid: the content is not of a VolumeGroupSnapshot")
	}
	request := CreateRequest{Name: name, Volumes: content.Spec.Source.VolumeHandles}
	class, err := t.classOf(ctx, content)
	if err != nil {
		return CreateRequest{}, err
	}
	if class != nil {
		if request.Parameters, err = snapshot.DriverParameters(class.Parameters); err != nil {
			return CreateRequest{}, fmt.Errorf("VolumeGroupSnapshotClass %q: %w", class.Name, err)
		}
		request.Secret, err = snapshot.ResolveGroupSecret(class, snapshot.SecretGroup, content.Name, content.Spec.GroupRef)
		if err != nil {
			return CreateRequest{}, err
		}
	}
	if t.config.ExtraCreateMetadata {
		request.Parameters = snapshot.AddGroupMetadata(request.Parameters, content)
	}
	return request, nil
}

// read reads a group that a user made known.
func (t *Taker) read(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent) (ready bool, err error) {
	handle, snapshots := handlesOf(content)
	if handle == "" {
		return false, errors.New("spec.source names neither volumes nor a group of snapshots")
	}
	class, err := t.classOf(ctx, content)
	if err != nil {
		return false, err
	}
	var secret *corev1.SecretReference
	if class != nil {
		if secret, err = snapshot.ResolveGroupSecret(class, snapshot.SecretGroupGet, content.Name, content.Spec.GroupRef); err != nil {
			return false, err
		}
	}
	found, err := t.deps.Driver.GetGroup(ctx, handle, snapshots, secret)
	if err == nil {
		err = checkMembers(found)
	}
	if err != nil {
		return false, fmt.Errorf("read group snapshot %q: %w", handle, err)
	}
	found.ID = handle
	if _, err := t.writeStatus(ctx, content, found); err != nil {
		return false, err
	}
	return found.Ready, nil
}

// classOf returns the class of a content, nil if it names none.
func (t *Taker) classOf(ctx context.Context, content *groupapi.VolumeGroupSnapshotContent) (*groupapi.VolumeGroupSnapshotClass, error) {
	return shared.ClassOf(ctx, "VolumeGroupSnapshotClass", content.Spec.ClassName, t.deps.Groups.VolumeGroupSnapshotClasses().Get)
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
	return t.taking.PatchStatus(ctx, content, fields)
}

// refOf returns the VolumeGroupSnapshot of a content, as timelines name it.
func refOf(content *groupapi.VolumeGroupSnapshotContent) timeline.Ref {
	ref := content.Spec.GroupRef
	return timeline.Ref{Kind: groupapi.KindGroup, Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}
}
