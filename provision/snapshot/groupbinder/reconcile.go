package groupbinder

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/reconcile"
)

// problem is a reason why a VolumeGroupSnapshot cannot be bound, which its status and an event report.
type problem struct {
	reason string
	err    error
	// waits is set if only an event of the VolumeGroupSnapshot or its content ends it.
	waits bool
}

func (p *problem) Error() string { return p.err.Error() }
func (p *problem) Unwrap() error { return p.err }

func problemf(reason, format string, args ...any) *problem {
	return &problem{reason: reason, err: fmt.Errorf(format, args...)}
}

// reconcile brings one VolumeGroupSnapshot on, and the contents that name it.
func (b *Binder) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	group, err := b.groups.Get(ctx, key.Namespace, key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("bind VolumeGroupSnapshot %s: %w", key, err)
	}
	if apierrors.IsNotFound(err) {
		group = nil
	}
	if err := b.reconcileContents(ctx, key, group); err != nil {
		return reconcile.Result{}, ignoreStale(err)
	}
	switch {
	case group == nil:
		return reconcile.Result{}, nil
	case group.DeletionTimestamp != nil:
		err = b.delete(ctx, group)
	default:
		err = b.bind(ctx, key, group)
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
	return reconcile.Result{}, fmt.Errorf("bind VolumeGroupSnapshot %s: %w", key, wrong)
}

// ignoreStale drops the error of a write to an object that has changed or is gone: its event brings the VolumeGroupSnapshot
// back.
func ignoreStale(err error) error {
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// reconcileContents does what contents need beside their VolumeGroupSnapshot, which is nil if it does not exist: one that a
// user created gets its finalizer, and one whose VolumeGroupSnapshot is gone may be deleted.
func (b *Binder) reconcileContents(ctx context.Context, key reconcile.Request, of *groupapi.VolumeGroupSnapshot) error {
	naming, err := b.contents.Index(ctx, byGroup, key.Namespace+"/"+key.Name)
	if err != nil {
		return err
	}
	for _, content := range naming {
		uid := content.Spec.GroupRef.UID
		gone := uid != "" && (of == nil || of.UID != uid)
		switch {
		case content.DeletionTimestamp == nil && !slices.Contains(content.Finalizers, snapshot.FinalizerGroupContent) && !gone:
			_, err = b.patchContent(ctx, content, finalizersPatch(content, append(slices.Clone(content.Finalizers), snapshot.FinalizerGroupContent)))
		case content.DeletionTimestamp != nil && gone && content.Annotations[snapshot.AnnGroupBeingDeleted] == "":
			_, err = b.patchContent(ctx, content, annotationPatch(snapshot.AnnGroupBeingDeleted))
		}
		if err != nil && ignoreStale(err) != nil {
			return fmt.Errorf("update VolumeGroupSnapshotContent %q: %w", content.Name, err)
		}
	}
	return nil
}

// bind finds or creates the content of a VolumeGroupSnapshot and its VolumeSnapshots, and copies the content's status.
func (b *Binder) bind(ctx context.Context, key reconcile.Request, group *groupapi.VolumeGroupSnapshot) error {
	if !slices.Contains(group.Finalizers, snapshot.FinalizerGroup) {
		var err error
		group, err = b.patchGroup(ctx, group, finalizersPatch(group, append(slices.Clone(group.Finalizers), snapshot.FinalizerGroup)))
		if err != nil {
			return err
		}
	}
	content, err := b.contentOf(ctx, group)
	if err != nil {
		return err
	}
	if content == nil {
		if group.Status != nil && group.Status.BoundContentName != nil {
			return &problem{reason: "GroupSnapshotContentMissing", waits: true, err: fmt.Errorf(
				"its VolumeGroupSnapshotContent %q is missing: its snapshots cannot be used any more", *group.Status.BoundContentName)}
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
	if err := b.createMembers(ctx, group, content); err != nil {
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
		return nil, &problem{reason: "GroupSnapshotValidationError", waits: true,
			err: errors.New("spec.source: name exactly one of selector and volumeGroupSnapshotContentName")}
	}
	content, err := b.contents.Get(ctx, "", name)
	if apierrors.IsNotFound(err) {
		if static {
			return nil, &problem{reason: "GroupSnapshotContentMissing", waits: true,
				err: fmt.Errorf("VolumeGroupSnapshotContent %q, which spec.source names, does not exist", name)}
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ref := content.Spec.GroupRef
	switch {
	case ref.Namespace != group.Namespace || ref.Name != group.Name || ref.UID != "" && ref.UID != group.UID || !static && ref.UID == "":
		return nil, &problem{reason: "GroupSnapshotContentMisbound", waits: true,
			err: fmt.Errorf("VolumeGroupSnapshotContent %q is bound to another VolumeGroupSnapshot: %s/%s", name, ref.Namespace, ref.Name)}
	case static && content.Spec.Source.Handles == nil:
		return nil, &problem{reason: "GroupSnapshotContentMismatch", waits: true,
			err: fmt.Errorf("VolumeGroupSnapshotContent %q has no spec.source.groupSnapshotHandles: it is not of an existing group", name)}
	case !static && len(content.Spec.Source.VolumeHandles) == 0:
		return nil, &problem{reason: "GroupSnapshotContentMismatch", waits: true,
			err: fmt.Errorf("VolumeGroupSnapshotContent %q has no spec.source.volumeHandles: it is not of volumes", name)}
	}
	return content, nil
}

// objectRef names the VolumeGroupSnapshot in contents and events.
func objectRef(group *groupapi.VolumeGroupSnapshot) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: groupapi.GroupVersion.String(), Kind: groupapi.KindGroup,
		Namespace: group.Namespace, Name: group.Name, UID: group.UID, ResourceVersion: group.ResourceVersion,
	}
}
