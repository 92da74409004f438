package groupbinder

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/provision/snapshot/shared"
	"github.com/berth-dev/berth/reconcile"
)

// byExisting indexes by their namespace the VolumeGroupSnapshots of groups that exist already, and the VolumeSnapshots that may be of one.
const byExisting = "existing"

func existingGroups(obj any) ([]string, error) {
	if g, ok := obj.(*groupapi.VolumeGroupSnapshot); ok && g.Spec.Source.ContentName != nil {
		return []string{g.Namespace}, nil
	}
	return nil, nil
}

func possibleMembers(obj any) ([]string, error) {
	if s, ok := obj.(*api.VolumeSnapshot); ok && mayBeMember(s) {
		return []string{s.Namespace}, nil
	}
	return nil, nil
}

// mayBeMember reports whether a VolumeSnapshot is bound to the content of a snapshot that exists already, and is not marked as a
// member of a group.
func mayBeMember(s *api.VolumeSnapshot) bool {
	return s.Spec.Source.ContentName != nil && s.DeletionTimestamp == nil && s.Status != nil && s.Status.BoundContentName != nil &&
		(snapshot.GroupOf(s) == nil || s.Status.GroupName == nil || !slices.Contains(s.Finalizers, snapshot.FinalizerMember))
}

// groupsOf returns the requests for the groups that a VolumeSnapshot is, or may be, a member of.
func groupsOf(s *api.VolumeSnapshot, groups cache.Indexer) []reconcile.Request {
	if owner := snapshot.GroupOf(s); owner != nil {
		return []reconcile.Request{requestFor(s.Namespace, owner.Name)}
	}
	if !mayBeMember(s) {
		return nil
	}
	names, err := groups.IndexKeys(byExisting, s.Namespace)
	if err != nil {
		return nil // the index exists
	}
	var requests []reconcile.Request
	for _, key := range names {
		namespace, name, err := cache.SplitMetaNamespaceKey(key)
		if err == nil {
			requests = append(requests, requestFor(namespace, name))
		}
	}
	return requests
}

// adoptMembers marks the VolumeSnapshots that a user has made of the snapshots of a group that exists already: from then on they are
// deleted with the group only, as external-snapshotter has it. The driver says which snapshots are of the group.
func (b *Binder) adoptMembers(ctx context.Context, group *groupapi.VolumeGroupSnapshot, content *groupapi.VolumeGroupSnapshotContent) error {
	if content.Status == nil || content.Status.GroupHandle == nil {
		return nil
	}
	found, err := b.members.GetIndexer().ByIndex(byExisting, group.Namespace)
	if err != nil {
		return fmt.Errorf("list the VolumeSnapshots that may be of the group: %w", err)
	}
	for _, obj := range found {
		member, ok := obj.(*api.VolumeSnapshot)
		if !ok {
			continue
		}
		if owner := snapshot.GroupOf(member); owner != nil && owner.UID != group.UID {
			continue // it is of another group
		}
		single, err := b.deps.Snapshots.VolumeSnapshotContents().Get(ctx, *member.Status.BoundContentName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the content of VolumeSnapshot %q: %w", member.Name, err)
		}
		if !isOfGroup(single, content, member.UID) {
			continue
		}
		if err := b.adopt(ctx, group, member); shared.IgnoreStale(err) != nil {
			return fmt.Errorf("make VolumeSnapshot %q a member of the group: %w", member.Name, err)
		}
	}
	return nil
}

// isOfGroup reports whether the content of the VolumeSnapshot with the UID is of a snapshot of the group.
func isOfGroup(single *api.VolumeSnapshotContent, group *groupapi.VolumeGroupSnapshotContent, uid types.UID) bool {
	return single.Spec.SnapshotRef.UID == uid && single.Spec.Driver == group.Spec.Driver && single.Status != nil &&
		ptr.Deref(single.Status.GroupHandle, "") == *group.Status.GroupHandle
}

// adopt marks one VolumeSnapshot as a member of the group.
func (b *Binder) adopt(ctx context.Context, group *groupapi.VolumeGroupSnapshot, member *api.VolumeSnapshot) (err error) {
	if member.Status.GroupName == nil {
		if member, err = b.single.PatchStatus(ctx, member, map[string]any{"volumeGroupSnapshotName": group.Name}); err != nil {
			return err
		}
	}
	owners := member.OwnerReferences
	if snapshot.GroupOf(member) == nil {
		owners = append(slices.Clone(owners), ownerOf(group))
	}
	_, err = b.single.Patch(ctx, member, map[string]any{"metadata": map[string]any{
		"uid": member.UID, "resourceVersion": member.ResourceVersion, "ownerReferences": owners,
		"finalizers": shared.WithFinalizers(member.Finalizers, snapshot.FinalizerMember),
	}})
	return err
}

// ownerOf returns the reference to a group in its members.
func ownerOf(group *groupapi.VolumeGroupSnapshot) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: groupapi.GroupVersion.String(), Kind: groupapi.KindGroup, Name: group.Name, UID: group.UID}
}
