package groupbinder

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/provision/snapshot/shared"
	"github.com/berth-dev/berth/reconcile"
)

// createMembers creates the VolumeSnapshots of a group, and their contents, once the driver has taken them.
func (b *Binder) createMembers(ctx context.Context, group *groupapi.VolumeGroupSnapshot, content *groupapi.VolumeGroupSnapshotContent) error {
	status := content.Status
	if status == nil || status.GroupHandle == nil || group.Status != nil && ptr.Deref(group.Status.ReadyToUse, false) {
		return nil
	}
	for i := range status.Snapshots {
		if err := b.createMember(ctx, group, content, &status.Snapshots[i]); err != nil {
			return fmt.Errorf("create the VolumeSnapshot of volume %q: %w", status.Snapshots[i].VolumeHandle, err)
		}
	}
	return nil
}

// createMember creates one VolumeSnapshot of a group. Each step is repeated until all have been made.
func (b *Binder) createMember(ctx context.Context, group *groupapi.VolumeGroupSnapshot, content *groupapi.VolumeGroupSnapshotContent,
	info *groupapi.SnapshotInfo,
) error {
	name, contentName := snapshot.MemberName(group.UID, info.VolumeHandle), snapshot.MemberContentName(group.UID, info.VolumeHandle)
	source, err := b.volumeOfHandle(ctx, content.Spec.Driver, info.VolumeHandle)
	if err != nil {
		return err
	}
	memberContent, err := b.createMemberContent(ctx, group, content, info, source)
	if err != nil {
		return err
	}
	member, err := b.deps.Snapshots.VolumeSnapshots(group.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		member, err = b.deps.Snapshots.VolumeSnapshots(group.Namespace).Create(ctx, &api.VolumeSnapshot{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: group.Namespace, Finalizers: []string{snapshot.FinalizerMember},
				OwnerReferences: []metav1.OwnerReference{ownerOf(group)},
			},
			Spec: api.VolumeSnapshotSpec{Source: api.VolumeSnapshotSource{ClaimName: ptr.To(claimOf(source))}},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	if memberContent.Spec.SnapshotRef.UID != member.UID {
		memberContent, err = b.singleContents.PatchSpec(ctx, memberContent, map[string]any{"volumeSnapshotRef": map[string]any{"uid": member.UID}})
		if err != nil {
			return err
		}
	}
	if ptr.Deref(memberStatusHandle(memberContent), "") != info.SnapshotHandle {
		if _, err := b.singleContents.PatchStatus(ctx, memberContent, map[string]any{
			"snapshotHandle": info.SnapshotHandle, "volumeGroupSnapshotHandle": content.Status.GroupHandle,
			"creationTime": info.CreationTime, "restoreSize": info.RestoreSize, "readyToUse": ptr.Deref(info.ReadyToUse, false),
		}); err != nil {
			return err
		}
	}
	if member.Status == nil || ptr.Deref(member.Status.BoundContentName, "") != contentName || member.Status.GroupName == nil {
		_, err = b.single.PatchStatus(ctx, member, map[string]any{
			"boundVolumeSnapshotContentName": contentName, "volumeGroupSnapshotName": group.Name})
	}
	return err
}

func memberStatusHandle(content *api.VolumeSnapshotContent) *string {
	if content.Status == nil {
		return nil
	}
	return content.Status.SnapshotHandle
}

// createMemberContent returns the content of one VolumeSnapshot of a group.
func (b *Binder) createMemberContent(ctx context.Context, group *groupapi.VolumeGroupSnapshot, content *groupapi.VolumeGroupSnapshotContent,
	info *groupapi.SnapshotInfo, source *corev1.PersistentVolume,
) (*api.VolumeSnapshotContent, error) {
	contents := b.deps.Snapshots.VolumeSnapshotContents()
	name := snapshot.MemberContentName(group.UID, info.VolumeHandle)
	found, err := contents.Get(ctx, name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return found, err
	}
	created := &api.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Finalizers: []string{snapshot.FinalizerContent},
			Annotations: map[string]string{snapshot.AnnGroupHandle: *content.Status.GroupHandle},
		},
		Spec: api.VolumeSnapshotContentSpec{
			SnapshotRef: corev1.ObjectReference{APIVersion: api.GroupVersion.String(), Kind: api.KindSnapshot,
				Namespace: group.Namespace, Name: snapshot.MemberName(group.UID, info.VolumeHandle)},
			DeletionPolicy: content.Spec.DeletionPolicy, Driver: content.Spec.Driver,
			Source: api.VolumeSnapshotContentSource{VolumeHandle: &info.VolumeHandle},
		},
	}
	if source != nil {
		created.Spec.SourceVolumeMode = source.Spec.VolumeMode
	}
	if secret := snapshot.GroupDeletionSecret(content); secret != nil {
		created.Annotations[snapshot.AnnDeletionSecretName] = secret.Name
		created.Annotations[snapshot.AnnDeletionSecretNamespace] = secret.Namespace
	}
	return contents.Create(ctx, created, metav1.CreateOptions{})
}

// volumeOfHandle returns the PersistentVolume that has the driver's handle, nil if there is none: that of a group of an earlier
// time may be gone.
func (b *Binder) volumeOfHandle(ctx context.Context, driver, handle string) (*corev1.PersistentVolume, error) {
	volumes, err := b.deps.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	for i := range volumes.Items {
		if source := volumes.Items[i].Spec.CSI; source != nil && source.Driver == driver && source.VolumeHandle == handle {
			return &volumes.Items[i], nil
		}
	}
	return nil, nil
}

// claimOf returns the name of the volume's claim, "" if it is not known.
func claimOf(volume *corev1.PersistentVolume) string {
	if volume == nil || volume.Spec.ClaimRef == nil {
		return ""
	}
	return volume.Spec.ClaimRef.Name
}

// deleteOrphans deletes the VolumeSnapshots of groups of a name that are gone; current is the UID of the one in the cache, if any. One
// that was created just before its group was deleted may not have been in the cache then, and the next group of
// the name may exist already.
func (b *Binder) deleteOrphans(ctx context.Context, key reconcile.Request, current types.UID) error {
	members, err := b.membersOf(key.Namespace, key.Name, "")
	if err != nil {
		return err
	}
	ofGroup := func(uid types.UID) func(*api.VolumeSnapshot) bool {
		return func(member *api.VolumeSnapshot) bool { return snapshot.GroupOf(member).UID == uid }
	}
	if members = slices.DeleteFunc(members, ofGroup(current)); len(members) == 0 {
		return nil
	}
	// The caches follow each other in no order: the group of a member that a user made may not be in its cache yet.
	group, err := b.deps.Groups.VolumeGroupSnapshots(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		members = slices.DeleteFunc(members, ofGroup(group.UID))
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("look for VolumeGroupSnapshot %s before the VolumeSnapshots of an earlier one are deleted: %w", key, err)
	}
	for _, member := range members {
		if err := b.deleteMember(ctx, member); shared.IgnoreStale(err) != nil {
			return fmt.Errorf("delete VolumeSnapshot %q of a group that is gone: %w", member.Name, err)
		}
	}
	return nil
}

// membersOf returns the VolumeSnapshots of the group of a name, from the cache; of the one with the UID unless that is "".
func (b *Binder) membersOf(namespace, name string, uid types.UID) ([]*api.VolumeSnapshot, error) {
	found, err := b.members.GetIndexer().ByIndex(byGroup, namespace+"/"+name)
	if err != nil {
		return nil, fmt.Errorf("list the VolumeSnapshots of the group: %w", err)
	}
	var members []*api.VolumeSnapshot
	for _, obj := range found {
		if member, ok := obj.(*api.VolumeSnapshot); ok && (uid == "" || snapshot.GroupOf(member).UID == uid) {
			members = append(members, member)
		}
	}
	return members, nil
}

// delete deletes the VolumeSnapshots of a group, then its content, if the policy says so, and then releases the group.
func (b *Binder) delete(ctx context.Context, _ reconcile.Request, group *groupapi.VolumeGroupSnapshot) error {
	if !slices.Contains(group.Finalizers, snapshot.FinalizerGroup) {
		return nil // others keep it
	}
	members, err := b.membersOf(group.Namespace, group.Name, group.UID)
	if err != nil {
		return err
	}
	for _, member := range members {
		if err := b.deleteMember(ctx, member); err != nil && shared.IgnoreStale(err) != nil {
			return fmt.Errorf("delete VolumeSnapshot %q: %w", member.Name, err)
		}
	}
	if len(members) > 0 {
		return nil // the event of the last one's end brings the group back
	}
	content, err := b.boundContent(ctx, group)
	if err != nil {
		return err
	}
	if content != nil {
		deleting, err := b.binding.DeleteContent(ctx, group, content, content.Spec.DeletionPolicy, "GroupSnapshotContentObjectDeleteError",
			b.contents.Delete)
		if err != nil || deleting {
			return err // the event of the content's end brings the group back
		}
	}
	_, err = b.binding.Requests.RemoveFinalizers(ctx, group, snapshot.FinalizerGroup)
	return err
}

// deleteMember deletes one VolumeSnapshot of a group that is being deleted. Its own controller ends it, which waits for
// volumes that are being created from it.
func (b *Binder) deleteMember(ctx context.Context, member *api.VolumeSnapshot) error {
	if member.DeletionTimestamp == nil {
		err := b.deps.Snapshots.VolumeSnapshots(member.Namespace).Delete(ctx, member.Name,
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &member.UID}})
		if err != nil {
			return err
		}
	}
	_, err := b.single.RemoveFinalizers(ctx, member, snapshot.FinalizerMember)
	return err
}

// boundContent returns the content that is bound to a group which is being deleted; nil if there is none.
func (b *Binder) boundContent(ctx context.Context, group *groupapi.VolumeGroupSnapshot) (*groupapi.VolumeGroupSnapshotContent, error) {
	name := snapshot.GroupContentName(group.UID)
	if group.Spec.Source.ContentName != nil {
		name = *group.Spec.Source.ContentName
	}
	content, err := b.contents.Get(ctx, "", name)
	if apierrors.IsNotFound(err) || err == nil && content.Spec.GroupRef.UID != group.UID {
		return nil, nil
	}
	return content, err
}
