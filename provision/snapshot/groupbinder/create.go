package groupbinder

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision/snapshot"
	"github.com/berth-dev/berth/provision/snapshot/groupapi"
	"github.com/berth-dev/berth/provision/snapshot/shared"
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
	volumes, err := b.sourcesOf(ctx, key, group)
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
			b.waits.ForClass(key)
			return nil, shared.Waitf(reasonCreation, "VolumeGroupSnapshotClass %q is of driver %q, but volume %q of claim %q is of driver %q: "+
				"select claims of one driver, and name a class of it", class.Name, class.Driver, volume.Name, volume.Spec.ClaimRef.Name, volume.Spec.CSI.Driver)
		}
		handles = append(handles, volume.Spec.CSI.VolumeHandle)
	}
	name, ref := snapshot.GroupContentName(group.UID), b.binding.Requests.RefOf(group)
	secret, err := snapshot.ResolveGroupSecret(class, snapshot.SecretGroup, name, *ref)
	if err != nil {
		b.waits.ForClass(key)
		return nil, &shared.Problem{Reason: reasonCreation, Waits: true, Err: err}
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
		return nil, shared.Problemf(reasonCreation, "create VolumeGroupSnapshotContent %q: %w", name, err)
	}
	b.deps.Logger.Info("created the content of a group snapshot", "groupSnapshot", key.String(), "content", name, "driver", class.Driver)
	b.Recorder().Event(ref, corev1.EventTypeNormal, "CreatingGroupSnapshot",
		fmt.Sprintf("Waiting for driver %s to take the snapshots of %d claims", class.Driver, len(handles)))
	return created, nil
}

// sourcesOf returns the volumes of the claims that a VolumeGroupSnapshot selects, by the names of the claims. All have to be
// bound: a group without one of them would not be what the user requests.
func (b *Binder) sourcesOf(ctx context.Context, key reconcile.Request, group *groupapi.VolumeGroupSnapshot) ([]*corev1.PersistentVolume, error) {
	selector, err := metav1.LabelSelectorAsSelector(group.Spec.Source.Selector)
	if err != nil {
		return nil, shared.Waitf(reasonCreation, "spec.source.selector: %w", err)
	}
	claims, err := b.deps.Client.CoreV1().PersistentVolumeClaims(group.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, shared.Problemf(reasonCreation, "list claims: %w", err)
	}
	if len(claims.Items) == 0 {
		b.waits.ForClaims(key, shared.Claims{Namespace: group.Namespace, Labels: selector.String()}, "")
		return nil, shared.Waitf(reasonCreation, "spec.source.selector: no claim of namespace %q has labels that match %q", group.Namespace, selector)
	}
	slices.SortFunc(claims.Items, func(a, b corev1.PersistentVolumeClaim) int { return strings.Compare(a.Name, b.Name) })
	var volumes []*corev1.PersistentVolume
	for i := range claims.Items {
		claim := &claims.Items[i]
		volume, wrong := shared.VolumeOf(ctx, b.deps.Client, claim, reasonCreation)
		if wrong != nil {
			if wrong.Waits {
				b.waits.ForClaims(key, shared.Claims{Namespace: claim.Namespace, Name: claim.Name}, claim.ResourceVersion)
			}
			return nil, wrong
		}
		volumes = append(volumes, volume)
	}
	return volumes, nil
}

// classOf returns the class of a VolumeGroupSnapshot. If it names none, the default class of the driver is written into its
// spec.
func (b *Binder) classOf(ctx context.Context, group *groupapi.VolumeGroupSnapshot, driver string,
) (*groupapi.VolumeGroupSnapshotClass, error) {
	classes := b.deps.Groups.VolumeGroupSnapshotClasses()
	return shared.RequestedClass(ctx, shared.Classes[groupapi.VolumeGroupSnapshotClass]{
		Kind: "VolumeGroupSnapshotClass", Field: "volumeGroupSnapshotClassName", Of: "group snapshot", ReasonGet: reasonClass, ReasonDefault: reasonDefault,
		Get: classes.Get,
		List: func(ctx context.Context) ([]groupapi.VolumeGroupSnapshotClass, error) {
			list, err := classes.List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, err
			}
			return list.Items, nil
		},
		IsDefault: func(class *groupapi.VolumeGroupSnapshotClass, driver string) bool {
			return class.Driver == driver && class.Annotations[snapshot.AnnDefaultGroupClass] == "true"
		},
	}, b.binding.Requests, b.waits, group, ptr.Deref(group.Spec.ClassName, ""), driver)
}
