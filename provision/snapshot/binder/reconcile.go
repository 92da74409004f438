package binder

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/api"
	"github.com/berth-dev/berth/reconcile"
)

// problem is a reason why a VolumeSnapshot cannot be bound, which its status and an event report.
type problem struct {
	reason string
	err    error
	// waits is set if an event, and not the backoff, ends it.
	waits bool
}

func (p *problem) Error() string { return p.err.Error() }
func (p *problem) Unwrap() error { return p.err }

func problemf(reason, format string, args ...any) *problem {
	return &problem{reason: reason, err: fmt.Errorf(format, args...)}
}

// reconcile brings one VolumeSnapshot on, and the contents that name it.
func (b *Binder) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	found, err := b.snapshots.Get(ctx, key.Namespace, key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("bind VolumeSnapshot %s: %w", key, err)
	}
	if apierrors.IsNotFound(err) {
		found = nil
	}
	if err := b.reconcileContents(ctx, key, found); err != nil {
		return reconcile.Result{}, ignoreStale(err)
	}
	switch {
	case found == nil:
		return reconcile.Result{}, nil
	case found.DeletionTimestamp != nil:
		err = b.delete(ctx, key, found)
	default:
		err = b.bind(ctx, key, found)
	}
	var wrong *problem
	if !errors.As(err, &wrong) {
		return reconcile.Result{}, ignoreStale(err)
	}
	if err := b.report(ctx, key, wrong); err != nil {
		return reconcile.Result{}, ignoreStale(err)
	}
	if wrong.waits {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, fmt.Errorf("bind VolumeSnapshot %s: %w", key, wrong)
}

// ignoreStale drops the error of a write to an object that has changed or is gone: its event brings the VolumeSnapshot back.
func ignoreStale(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// reconcileContents does what contents need beside their VolumeSnapshot, which is nil if it does not exist: one that a user
// created gets its finalizer, and one whose VolumeSnapshot is gone may be deleted.
func (b *Binder) reconcileContents(ctx context.Context, key reconcile.Request, of *api.VolumeSnapshot) error {
	naming, err := b.contents.Index(ctx, bySnapshot, key.Namespace+"/"+key.Name)
	if err != nil {
		return err
	}
	for _, content := range naming {
		uid := content.Spec.SnapshotRef.UID
		gone := uid != "" && (of == nil || of.UID != uid)
		switch {
		case content.DeletionTimestamp == nil && !slices.Contains(content.Finalizers, snapshot.FinalizerContent) && !gone:
			err = b.patchContent(ctx, content, finalizersPatch(content, append(slices.Clone(content.Finalizers), snapshot.FinalizerContent)))
		case content.DeletionTimestamp != nil && gone && content.Annotations[snapshot.AnnBeingDeleted] == "":
			err = b.patchContent(ctx, content, annotationPatch(snapshot.AnnBeingDeleted))
		}
		if err != nil && ignoreStale(err) != nil {
			return fmt.Errorf("update VolumeSnapshotContent %q: %w", content.Name, err)
		}
	}
	return nil
}

// bind finds or creates the content of a VolumeSnapshot and copies the content's status.
func (b *Binder) bind(ctx context.Context, key reconcile.Request, s *api.VolumeSnapshot) error {
	s, err := b.addFinalizers(ctx, s)
	if err != nil {
		return err
	}
	if snapshot.GroupOf(s) != nil && (s.Status == nil || s.Status.BoundContentName == nil) {
		return nil // the controller of the group binds it
	}
	content, err := b.contentOf(ctx, s)
	if err != nil {
		return err
	}
	if content == nil {
		if s.Status != nil && s.Status.BoundContentName != nil {
			return &problem{reason: "SnapshotContentMissing", waits: true, err: fmt.Errorf(
				"its VolumeSnapshotContent %q is missing: the snapshot cannot be used any more", *s.Status.BoundContentName)}
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
	case snapshot.GroupOf(s) != nil:
		name = *s.Status.BoundContentName
	case source.ContentName != nil && source.ClaimName == nil:
		name, static = *source.ContentName, true
	case source.ClaimName == nil || source.ContentName != nil:
		return nil, &problem{reason: "SnapshotValidationError", waits: true,
			err: errors.New("spec.source: name exactly one of persistentVolumeClaimName and volumeSnapshotContentName")}
	}
	content, err := b.contents.Get(ctx, "", name)
	if apierrors.IsNotFound(err) {
		if static {
			return nil, &problem{reason: "SnapshotContentMissing", waits: true,
				err: fmt.Errorf("VolumeSnapshotContent %q, which spec.source names, does not exist", name)}
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ref := content.Spec.SnapshotRef
	switch {
	case ref.Namespace != s.Namespace || ref.Name != s.Name || ref.UID != "" && ref.UID != s.UID || !static && ref.UID == "":
		return nil, &problem{reason: "SnapshotContentMisbound", waits: true,
			err: fmt.Errorf("VolumeSnapshotContent %q is bound to another VolumeSnapshot: %s/%s", name, ref.Namespace, ref.Name)}
	case static && content.Spec.Source.SnapshotHandle == nil:
		return nil, &problem{reason: "SnapshotContentMismatch", waits: true,
			err: fmt.Errorf("VolumeSnapshotContent %q has no spec.source.snapshotHandle: it is not of an existing snapshot", name)}
	case !static && content.Spec.Source.VolumeHandle == nil && !snapshot.IsMember(content):
		return nil, &problem{reason: "SnapshotContentMismatch", waits: true,
			err: fmt.Errorf("VolumeSnapshotContent %q has no spec.source.volumeHandle: it is not of a volume", name)}
	}
	return content, nil
}

// objectRef names the VolumeSnapshot in contents and events.
func objectRef(s *api.VolumeSnapshot) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: api.GroupVersion.String(), Kind: api.KindSnapshot,
		Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion,
	}
}
