package groupbinder

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/reconcile"
)

// The reasons of events, as external-snapshotter has them.
const (
	reasonCreation = "GroupSnapshotContentCreationFailed"
	reasonClass    = "GetGroupSnapshotClassFailed"
	reasonDefault  = "SetDefaultGroupSnapshotClassFailed"
)

// create creates the content of a VolumeGroupSnapshot that selects claims.
func (b *Binder) create(ctx context.Context, key reconcile.Request, group *groupapi.VolumeGroupSnapshot) (*groupapi.VolumeGroupSnapshotContent, error) {
	volumes, err := b.sourcesOf(ctx, group)
	if err != nil {
		return nil, err
	}
	class, err := b.classOf(ctx, group, volumes[0].Spec.CSI.Driver)
	if err != nil {
		return nil, err
	}
	var handles []string
	for _, volume := range volumes {
		if volume.Spec.CSI.Driver != class.Driver {
			return nil, problemf(reasonCreation, "VolumeGroupSnapshotClass %q is of driver %q, but volume %q of claim %q is of driver %q: "+
				"select claims of one driver, and name a class of it", class.Name, class.Driver, volume.Name, volume.Spec.ClaimRef.Name, volume.Spec.CSI.Driver)
		}
		handles = append(handles, volume.Spec.CSI.VolumeHandle)
	}
	name, ref := snapshot.GroupContentName(group.UID), objectRef(group)
	secret, err := snapshot.ResolveGroupSecret(class, snapshot.SecretGroup, name, *ref)
	if err != nil {
		return nil, &problem{reason: reasonCreation, err: err}
	}
	content := &groupapi.VolumeGroupSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{snapshot.FinalizerGroupContent}},
		Spec: groupapi.VolumeGroupSnapshotContentSpec{
			GroupRef: *ref, DeletionPolicy: class.DeletionPolicy, Driver: class.Driver, ClassName: &class.Name,
			Source: groupapi.VolumeGroupSnapshotContentSource{VolumeHandles: handles},
		},
	}
	if secret != nil {
		content.Annotations = map[string]string{
			snapshot.AnnGroupDeletionSecretName: secret.Name, snapshot.AnnGroupDeletionSecretNamespace: secret.Namespace,
		}
	}
	created, err := b.contents.Create(ctx, content, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create VolumeGroupSnapshotContent %q: %w", name, err) // the cache shows it soon
	}
	if err != nil {
		return nil, problemf(reasonCreation, "create VolumeGroupSnapshotContent %q: %w", name, err)
	}
	b.deps.Logger.Info("created the content of a group snapshot", "groupSnapshot", key.String(), "content", name, "driver", class.Driver)
	b.recorder.Event(ref, corev1.EventTypeNormal, "CreatingGroupSnapshot",
		fmt.Sprintf("Waiting for driver %s to take the snapshots of %d claims", class.Driver, len(handles)))
	return created, nil
}

// sourcesOf returns the volumes of the claims that a VolumeGroupSnapshot selects, by the names of the claims. All have to be
// bound: a group without one of them would not be what the user requests.
func (b *Binder) sourcesOf(ctx context.Context, group *groupapi.VolumeGroupSnapshot) ([]*corev1.PersistentVolume, error) {
	selector, err := metav1.LabelSelectorAsSelector(group.Spec.Source.Selector)
	if err != nil {
		return nil, &problem{reason: reasonCreation, waits: true, err: fmt.Errorf("spec.source.selector: %w", err)}
	}
	claims, err := b.deps.Client.CoreV1().PersistentVolumeClaims(group.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, problemf(reasonCreation, "list claims: %w", err)
	}
	if len(claims.Items) == 0 {
		return nil, problemf(reasonCreation, "spec.source.selector: no claim of namespace %q has labels that match %q", group.Namespace, selector)
	}
	var volumes []*corev1.PersistentVolume
	for i := range claims.Items {
		volume, err := b.volumeOf(ctx, &claims.Items[i])
		if err != nil {
			return nil, err
		}
		volumes = append(volumes, volume)
	}
	slices.SortFunc(volumes, func(a, b *corev1.PersistentVolume) int {
		return slices.Compare([]string{a.Spec.ClaimRef.Name}, []string{b.Spec.ClaimRef.Name})
	})
	return volumes, nil
}

// volumeOf returns the volume of a claim.
func (b *Binder) volumeOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	switch {
	case claim.DeletionTimestamp != nil:
		return nil, problemf(reasonCreation, "claim %q is being deleted: no snapshot of it can be taken any more", claim.Name)
	case claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "":
		return nil, problemf(reasonCreation, "claim %q is not bound to a volume yet", claim.Name)
	}
	volume, err := b.deps.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, problemf(reasonCreation, "get volume %q of claim %q: %w", claim.Spec.VolumeName, claim.Name, err)
	case volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID:
		return nil, problemf(reasonCreation, "volume %q is not bound to claim %q", volume.Name, claim.Name)
	case volume.Spec.CSI == nil:
		return nil, problemf(reasonCreation, "volume %q of claim %q is not of a CSI driver: only those have snapshots", volume.Name, claim.Name)
	}
	return volume, nil
}

// classOf returns the class of a VolumeGroupSnapshot. If it names none, the default class of the driver is written into its
// spec.
func (b *Binder) classOf(ctx context.Context, group *groupapi.VolumeGroupSnapshot, driver string) (*groupapi.VolumeGroupSnapshotClass, error) {
	classes := b.deps.Groups.VolumeGroupSnapshotClasses()
	if name := ptr.Deref(group.Spec.ClassName, ""); name != "" {
		class, err := classes.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, problemf(reasonClass, "VolumeGroupSnapshotClass %q does not exist", name)
		}
		if err != nil {
			return nil, problemf(reasonClass, "get VolumeGroupSnapshotClass %q: %w", name, err)
		}
		return class, nil
	}
	list, err := classes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, problemf(reasonDefault, "list VolumeGroupSnapshotClasses: %w", err)
	}
	defaults := slices.DeleteFunc(list.Items, func(class groupapi.VolumeGroupSnapshotClass) bool {
		return class.Driver != driver || class.Annotations[snapshot.AnnDefaultGroupClass] != "true"
	})
	if len(defaults) != 1 {
		return nil, problemf(reasonDefault, "spec.volumeGroupSnapshotClassName names no class, and driver %q has %d default classes", driver, len(defaults))
	}
	class := &defaults[0]
	_, err = b.patchGroup(ctx, group, map[string]any{
		"metadata": map[string]any{"uid": group.UID}, "spec": map[string]any{"volumeGroupSnapshotClassName": class.Name},
	})
	return class, err
}
