package binder

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
	"github.com/berth-dev/berth/reconcile"
)

const (
	reasonCreation = "SnapshotContentCreationFailed"
	reasonClass    = "GetSnapshotClassFailed"
	reasonDefault  = "SetDefaultSnapshotClassFailed"
)

// create creates the content of a VolumeSnapshot of a claim.
func (b *Binder) create(ctx context.Context, key reconcile.Request, s *api.VolumeSnapshot) (*api.VolumeSnapshotContent, error) {
	claim, volume, err := b.sourceOf(ctx, key, s)
	if err != nil {
		return nil, err
	}
	class, err := b.classOf(ctx, key, s, volume.Spec.CSI.Driver)
	if err != nil {
		return nil, err
	}
	if class.Driver != volume.Spec.CSI.Driver {
		b.waits.forClass(key)
		return nil, &problem{reason: reasonCreation, waits: true, err: fmt.Errorf(
			"VolumeSnapshotClass %q is of driver %q, but the volume of claim %q is of driver %q: name a class of that driver",
			class.Name, class.Driver, claim.Name, volume.Spec.CSI.Driver)}
	}
	name, ref := snapshot.ContentName(s.UID), objectRef(s)
	secret, err := snapshot.ResolveSecret(class, snapshot.SecretSnapshotter, name, *ref)
	if err != nil {
		b.waits.forClass(key)
		return nil, &problem{reason: reasonCreation, waits: true, err: err}
	}
	if err := b.holdClaim(ctx, claim); err != nil {
		return nil, err
	}
	content := &api.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{snapshot.FinalizerContent}},
		Spec: api.VolumeSnapshotContentSpec{
			SnapshotRef: *ref, DeletionPolicy: class.DeletionPolicy, Driver: class.Driver, ClassName: &class.Name,
			Source:           api.VolumeSnapshotContentSource{VolumeHandle: &volume.Spec.CSI.VolumeHandle},
			SourceVolumeMode: volume.Spec.VolumeMode,
		},
	}
	if secret != nil {
		content.Annotations = map[string]string{
			snapshot.AnnDeletionSecretName: secret.Name, snapshot.AnnDeletionSecretNamespace: secret.Namespace,
		}
	}
	created, err := b.contents.Create(ctx, content, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create VolumeSnapshotContent %q: %w", name, err) // the cache shows it soon
	}
	if err != nil {
		return nil, problemf(reasonCreation, "create VolumeSnapshotContent %q: %w", name, err)
	}
	b.deps.Logger.Info("created the content of a snapshot", "snapshot", key.String(), "content", name, "driver", class.Driver)
	b.recorder.Event(ref, corev1.EventTypeNormal, "CreatingSnapshot",
		fmt.Sprintf("Waiting for driver %s to take the snapshot of claim %s", class.Driver, claim.Name))
	return created, nil
}

// sourceOf returns the claim that a VolumeSnapshot is of, and its volume.
func (b *Binder) sourceOf(ctx context.Context, key reconcile.Request, s *api.VolumeSnapshot,
) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	name := types.NamespacedName{Namespace: s.Namespace, Name: *s.Spec.Source.ClaimName}
	claim, err := b.deps.Client.CoreV1().PersistentVolumeClaims(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	wait := func(format string, args ...any) error {
		version := ""
		if err == nil {
			version = claim.ResourceVersion
		}
		b.waits.forClaim(key, name, version)
		return &problem{reason: reasonCreation, waits: true, err: fmt.Errorf(format, args...)}
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil, wait("claim %q, which spec.source names, does not exist", name.Name)
	case err != nil:
		return nil, nil, problemf(reasonCreation, "get claim %q: %w", name.Name, err)
	case claim.DeletionTimestamp != nil:
		return nil, nil, wait("claim %q is being deleted: no snapshot of it can be taken any more", name.Name)
	case claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "":
		return nil, nil, wait("claim %q is not bound to a volume yet; the snapshot is taken when it is", name.Name)
	}
	volume, err := b.deps.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, nil, problemf(reasonCreation, "get volume %q of claim %q: %w", claim.Spec.VolumeName, name.Name, err)
	case volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID:
		return nil, nil, problemf(reasonCreation, "volume %q is not bound to claim %q", volume.Name, name.Name)
	case volume.Spec.CSI == nil:
		return nil, nil, wait("volume %q of claim %q is not of a CSI driver: only those have snapshots", volume.Name, name.Name)
	}
	return claim, volume, nil
}

// classOf returns the class of a VolumeSnapshot of a claim. If it names none, the default class of the driver is written into
// its spec.
func (b *Binder) classOf(ctx context.Context, key reconcile.Request, s *api.VolumeSnapshot, driver string,
) (*api.VolumeSnapshotClass, error) {
	classes := b.deps.Snapshots.VolumeSnapshotClasses()
	wait := func(reason, format string, args ...any) error {
		b.waits.forClass(key)
		return &problem{reason: reason, waits: true, err: fmt.Errorf(format, args...)}
	}
	if name := ptr.Deref(s.Spec.ClassName, ""); name != "" {
		class, err := classes.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, wait(reasonClass, "VolumeSnapshotClass %q does not exist", name)
		}
		if err != nil {
			return nil, problemf(reasonClass, "get VolumeSnapshotClass %q: %w", name, err)
		}
		return class, nil
	}
	list, err := classes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, problemf(reasonDefault, "list VolumeSnapshotClasses: %w", err)
	}
	defaults := slices.DeleteFunc(list.Items, func(class api.VolumeSnapshotClass) bool {
		return class.Driver != driver || class.Annotations[snapshot.AnnDefaultClass] != "true"
	})
	switch len(defaults) {
	case 0:
		return nil, wait(reasonDefault, "spec.volumeSnapshotClassName names no class, and driver %q has no default class", driver)
	case 1:
	default:
		return nil, wait(reasonDefault, "spec.volumeSnapshotClassName names no class, and driver %q has %d default classes", driver, len(defaults))
	}
	class := &defaults[0]
	_, err = b.patchSnapshot(ctx, s, map[string]any{
		"metadata": map[string]any{"uid": s.UID}, "spec": map[string]any{"volumeSnapshotClassName": class.Name},
	})
	return class, err
}

// holdClaim keeps the claim until the snapshot is ready.
func (b *Binder) holdClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if slices.Contains(claim.Finalizers, snapshot.FinalizerClaim) {
		return nil
	}
	return b.patchClaim(ctx, claim, append(slices.Clone(claim.Finalizers), snapshot.FinalizerClaim))
}

// releaseClaim releases the claim of a VolumeSnapshot, if no other snapshot of it is being taken.
func (b *Binder) releaseClaim(ctx context.Context, s *api.VolumeSnapshot) error {
	source := s.Spec.Source.ClaimName
	if source == nil || s.DeletionTimestamp == nil && !snapshot.IsReady(s) {
		return nil
	}
	claim, err := b.deps.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, *source, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get claim %q: %w", *source, err)
	}
	if !slices.Contains(claim.Finalizers, snapshot.FinalizerClaim) {
		return nil
	}
	others, err := b.snapshots.Index(ctx, byClaim, s.Namespace+"/"+*source)
	if err != nil {
		return err
	}
	for _, other := range others {
		if other.UID != s.UID && other.DeletionTimestamp == nil && !snapshot.IsReady(other) {
			return nil
		}
	}
	return b.patchClaim(ctx, claim, without(claim.Finalizers, snapshot.FinalizerClaim))
}
