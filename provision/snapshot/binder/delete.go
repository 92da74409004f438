package binder

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/provision/snapshot/shared"
	"github.com/berth-dev/berth/reconcile"
)

// delete carries the deletion of a VolumeSnapshot over to its content, and then releases it.
func (b *Binder) delete(ctx context.Context, key reconcile.Request, s *api.VolumeSnapshot) error {
	if !slices.Contains(s.Finalizers, snapshot.FinalizerBound) && !slices.Contains(s.Finalizers, snapshot.FinalizerSource) {
		return nil // others keep it
	}
	if slices.Contains(s.Finalizers, snapshot.FinalizerMember) {
		return shared.Waitf("SnapshotDeletePending", "it is of VolumeGroupSnapshot %q: delete that, which deletes all of its snapshots", groupName(s))
	}
	content, err := b.boundContent(ctx, s)
	if err != nil {
		return err
	}
	if content != nil {
		waiting, err := b.restoring(ctx, s)
		if err != nil {
			return err
		}
		if waiting != nil {
			b.waits.ForClaims(key, shared.Claims{Namespace: s.Namespace, Name: waiting.Name}, waiting.ResourceVersion)
			b.Recorder().Event(b.binding.Requests.RefOf(s), corev1.EventTypeWarning, "SnapshotDeletePending",
				fmt.Sprintf("claim %s is being created from the snapshot", waiting.Name))
			return nil
		}
		deleting, err := b.binding.DeleteContent(ctx, s, content, content.Spec.DeletionPolicy, "SnapshotContentObjectDeleteError", b.contents.Delete)
		if err != nil {
			return err
		}
		if deleting {
			return b.releaseClaim(ctx, s) // the event of the content's end brings the VolumeSnapshot back
		}
	}
	if err := b.releaseClaim(ctx, s); err != nil {
		return err
	}
	_, err = b.binding.Requests.RemoveFinalizers(ctx, s, snapshot.FinalizerBound, snapshot.FinalizerSource)
	return err
}

// groupName returns the name of the VolumeGroupSnapshot that a VolumeSnapshot is of, "" if nothing names it any more.
func groupName(s *api.VolumeSnapshot) string {
	if group := snapshot.GroupOf(s); group != nil {
		return group.Name
	}
	if s.Status != nil {
		return ptr.Deref(s.Status.GroupName, "")
	}
	return ""
}

// boundContent returns the content that is bound to a VolumeSnapshot which is being deleted; nil if there is none.
func (b *Binder) boundContent(ctx context.Context, s *api.VolumeSnapshot) (*api.VolumeSnapshotContent, error) {
	name := snapshot.ContentName(s.UID)
	switch {
	case s.Spec.Source.ContentName != nil:
		name = *s.Spec.Source.ContentName
	case snapshot.GroupOf(s) != nil && s.Status != nil && s.Status.BoundContentName != nil:
		name = *s.Status.BoundContentName
	}
	content, err := b.contents.Get(ctx, "", name)
	if apierrors.IsNotFound(err) || err == nil && content.Spec.SnapshotRef.UID != s.UID {
		return nil, nil
	}
	return content, err
}

// restoring returns a claim whose volume is being created from the VolumeSnapshot, nil if there is none. The driver may be creating it for a
// claim that is being deleted, too: its provisioner keeps the claim until it knows the outcome.
func (b *Binder) restoring(ctx context.Context, s *api.VolumeSnapshot) (*corev1.PersistentVolumeClaim, error) {
	claims, err := b.deps.Client.CoreV1().PersistentVolumeClaims(s.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the claims that may be created from it: %w", err)
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		source := claim.Spec.DataSource
		if source != nil && source.Kind == api.KindSnapshot && ptr.Deref(source.APIGroup, "") == api.GroupName &&
			source.Name == s.Name && claim.Status.Phase == corev1.ClaimPending {
			return claim, nil
		}
	}
	return nil, nil
}
