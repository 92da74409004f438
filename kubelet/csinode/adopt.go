package csinode

import (
	"context"
	"fmt"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// adopt makes the CSINode, which may be one that a deleted Node of this name or another kubelet has left, that of the current Node.
func (m *Manager) adopt(ctx context.Context) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		object, err := m.ensure(ctx)
		if err != nil {
			return err
		}
		owner, err := m.ownerRef()
		if err != nil {
			return err
		}
		changed := m.adopted(object, owner)
		if equality.Semantic.DeepEqual(changed, object) {
			return nil
		}
		_, err = m.deps.Client.StorageV1().CSINodes().Update(ctx, changed, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("make CSINode %q that of this node: %w", m.config.NodeName, err)
	}
	return nil
}

// adopted returns the CSINode as it has to be. One that another Node owns would be deleted with that Node, and its drivers ran there; only
// those that are registered now are kept.
func (m *Manager) adopted(object *storagev1.CSINode, owner metav1.OwnerReference) *storagev1.CSINode {
	changed := object.DeepCopy()
	if changed.Annotations[migratedAnnotation] != migratedPlugins {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, migratedAnnotation, migratedPlugins)
	}
	isOwner := func(o metav1.OwnerReference) bool {
		return o.Kind == owner.Kind && o.Name == owner.Name && o.UID == owner.UID
	}
	if slices.ContainsFunc(object.OwnerReferences, isOwner) {
		return changed
	}
	changed.OwnerReferences = []metav1.OwnerReference{owner}
	registered := m.registered()
	changed.Spec.Drivers = slices.DeleteFunc(changed.Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
		_, ok := registered[d.Name]
		return !ok
	})
	return changed
}
