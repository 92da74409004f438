package binder

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/shared"
	"github.com/berth-dev/berth/reconcile"
)

// bind finds or creates the content of a VolumeSnapshot and copies the content's status.
func (b *Binder) bind(ctx context.Context, key reconcile.Request, s *api.VolumeSnapshot) error {
	s, err := b.binding.Requests.AddFinalizers(ctx, s, snapshot.FinalizerSource, snapshot.FinalizerBound)
	if err != nil {
		return err
	}
	if snapshot.BoundByGroup(s) && (s.Status == nil || s.Status.BoundContentName == nil) {
		return nil // it is not bound yet
	}
	content, err := b.contentOf(ctx, s)
	if err != nil {
		return err
	}
	if content == nil {
		if s.Status != nil && s.Status.BoundContentName != nil {
			return shared.Waitf("SnapshotContentMissing",
				"its VolumeSnapshotContent %q is missing: the snapshot cannot be used any more", *s.Status.BoundContentName)
		}
		if content, err = b.create(ctx, key, s); err != nil {
			return err
		}
	}
	if content.Spec.SnapshotRef.UID == "" {
		if content, err = b.claimContent(ctx, s, content); err != nil {
			return err
		}
	}
	if s, err = b.copyStatus(ctx, s, content); err != nil {
		return err
	}
	return b.releaseClaim(ctx, s)
}

// contentOf returns the content that is, or is to be, bound to the VolumeSnapshot; nil if it does not exist.
func (b *Binder) contentOf(ctx context.Context, s *api.VolumeSnapshot) (*api.VolumeSnapshotContent, error) {
	name, static := snapshot.ContentName(s.UID), false
	switch source := s.Spec.Source; {
	case snapshot.BoundByGroup(s):
		name = *s.Status.BoundContentName
	case source.ContentName != nil && source.ClaimName == nil:
		name, static = *source.ContentName, true
	case source.ClaimName == nil || source.ContentName != nil:
		return nil, shared.Waitf("SnapshotValidationError", "spec.source: name exactly one of persistentVolumeClaimName and volumeSnapshotContentName")
	}
	content, err := b.contents.Get(ctx, "", name)
	if apierrors.IsNotFound(err) {
		if static {
			return nil, shared.Waitf("SnapshotContentMissing", "VolumeSnapshotContent %q, which spec.source names, does not exist", name)
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := b.binding.CheckRef(s, content, static, "SnapshotContentMisbound"); err != nil {
		return nil, err
	}
	switch {
	case static && content.Spec.Source.SnapshotHandle == nil:
		return nil, shared.Waitf("SnapshotContentMismatch",
			"VolumeSnapshotContent %q has no spec.source.snapshotHandle: it is not of an existing snapshot", name)
	case !static && content.Spec.Source.VolumeHandle == nil && !snapshot.IsMember(content):
		return nil, shared.Waitf("SnapshotContentMismatch", "VolumeSnapshotContent %q has no spec.source.volumeHandle: it is not of a volume", name)
	}
	return content, nil
}
