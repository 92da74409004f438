package groupbinder

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/provision/snapshot/shared"
	"github.com/berth-dev/berth/reconcile"
)

// bind finds or creates the content of a VolumeGroupSnapshot and its VolumeSnapshots, and copies the content's status.
func (b *Binder) bind(ctx context.Context, key reconcile.Request, group *groupapi.VolumeGroupSnapshot) error {
	group, err := b.binding.Requests.AddFinalizers(ctx, group, snapshot.FinalizerGroup)
	if err != nil {
		return err
	}
	content, err := b.contentOf(ctx, group)
	if err != nil {
		return err
	}
	if content == nil {
		if group.Status != nil && group.Status.BoundContentName != nil {
			return shared.Waitf("GroupSnapshotContentMissing",
				"its VolumeGroupSnapshotContent %q is missing: its snapshots cannot be used any more", *group.Status.BoundContentName)
		}
		if content, err = b.create(ctx, key, group); err != nil {
			return err
		}
	}
	if content.Spec.GroupRef.UID == "" {
		if content, err = b.claimContent(ctx, group, content); err != nil {
			return err
		}
	}
	members := b.createMembers
	if group.Spec.Source.ContentName != nil {
		members = b.adoptMembers // the user makes them
	}
	if err := members(ctx, group, content); err != nil {
		return err
	}
	return b.copyStatus(ctx, group, content)
}

// contentOf returns the content that is, or is to be, bound to the VolumeGroupSnapshot; nil if it does not exist.
func (b *Binder) contentOf(ctx context.Context, group *groupapi.VolumeGroupSnapshot) (*groupapi.VolumeGroupSnapshotContent, error) {
	name, static := snapshot.GroupContentName(group.UID), false
	switch source := group.Spec.Source; {
	case source.ContentName != nil && source.Selector == nil:
		name, static = *source.ContentName, true
	case source.Selector == nil || source.ContentName != nil:
		return nil, shared.Waitf("GroupSnapshotValidationError", "spec.source: name exactly one of selector and volumeGroupSnapshotContentName")
	}
	content, err := b.contents.Get(ctx, "", name)
	if apierrors.IsNotFound(err) {
		if static {
			return nil, shared.Waitf("GroupSnapshotContentMissing", "VolumeGroupSnapshotContent %q, which spec.source names, does not exist", name)
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := b.binding.CheckRef(group, content, static, "GroupSnapshotContentMisbound"); err != nil {
		return nil, err
	}
	switch {
	case static && content.Spec.Source.Handles == nil:
		return nil, shared.Waitf("GroupSnapshotContentMismatch",
			"VolumeGroupSnapshotContent %q has no spec.source.groupSnapshotHandles: it is not of an existing group", name)
	case !static && len(content.Spec.Source.VolumeHandles) == 0:
		return nil, shared.Waitf("GroupSnapshotContentMismatch", "VolumeGroupSnapshotContent %q has no spec.source.volumeHandles: it is not of volumes", name)
	}
	return content, nil
}
