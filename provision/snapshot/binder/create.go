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
	class, err := b.classOf(ctx, s, volume.Spec.CSI.Driver)
	if err != nil {
		return nil, err
	}
	if class.Driver != volume.Spec.CSI.Driver {
		b.waits.ForClass(key)
		return nil, shared.Waitf(reasonCreation,
			"VolumeSnapshotClass %q is of driver %q, but the volume of claim %q is of driver %q: name a class of that driver",
			class.Name, class.Driver, claim.Name, volume.Spec.CSI.Driver)
	}
	name, ref := snapshot.ContentName(s.UID), b.binding.Requests.RefOf(s)
	secret, err := snapshot.ResolveSecret(class, snapshot.SecretSnapshotter, name, *ref)
	if err != nil {
		b.waits.ForClass(key)
		return nil, &shared.Problem{Reason: reasonCreation, Waits: true, Err: err}
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
		return nil, shared.Problemf(reasonCreation, "create VolumeSnapshotContent %q: %w", name, err)
	}
	b.deps.Logger.Info("created the content of a snapshot", "snapshot", key.String(), "content", name, "driver", class.Driver)
	b.Recorder().Event(ref, corev1.EventTypeNormal, "CreatingSnapshot",
		fmt.Sprintf("Waiting for driver %s to take the snapshot of claim %s", class.Driver, claim.Name))
	return created, nil
}

// sourceOf returns the claim that a VolumeSnapshot is of, and its volume.
func (b *Binder) sourceOf(ctx context.Context, key reconcile.Request, s *api.VolumeSnapshot,
) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	name := *s.Spec.Source.ClaimName
	claim, err := b.deps.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	waiting := shared.Claims{Namespace: s.Namespace, Name: name}
	if apierrors.IsNotFound(err) {
		b.waits.ForClaims(key, waiting, "")
		return nil, nil, shared.Waitf(reasonCreation, "claim %q, which spec.source names, does not exist", name)
	}
	if err != nil {
		return nil, nil, shared.Problemf(reasonCreation, "get claim %q: %w", name, err)
	}
	volume, wrong := shared.VolumeOf(ctx, b.deps.Client, claim, reasonCreation)
	if wrong != nil {
		if wrong.Waits {
			b.waits.ForClaims(key, waiting, claim.ResourceVersion)
		}
		return nil, nil, wrong
	}
	return claim, volume, nil
}

// classOf returns the class of a VolumeSnapshot of a claim. If it names none, the default class of the driver is written into
// its spec.
func (b *Binder) classOf(ctx context.Context, s *api.VolumeSnapshot, driver string,
) (*api.VolumeSnapshotClass, error) {
	classes := b.deps.Snapshots.VolumeSnapshotClasses()
	return shared.RequestedClass(ctx, shared.Classes[api.VolumeSnapshotClass]{
		Kind: "VolumeSnapshotClass", Field: "volumeSnapshotClassName", Of: "snapshot", ReasonGet: reasonClass, ReasonDefault: reasonDefault,
		Get: classes.Get,
		List: func(ctx context.Context) ([]api.VolumeSnapshotClass, error) {
			list, err := classes.List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			return list.Items, nil
		},
		IsDefault: func(class *api.VolumeSnapshotClass, driver string) bool {
			return class.Driver == driver && class.Annotations[snapshot.AnnDefaultClass] == "true"
		},
	}, b.binding.Requests, b.waits, s, ptr.Deref(s.Spec.ClassName, ""), driver)
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
	return b.patchClaim(ctx, claim, shared.WithoutFinalizers(claim.Finalizers, snapshot.FinalizerClaim))
}
