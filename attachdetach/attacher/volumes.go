package attacher

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// volumeOf returns the name of the VolumeAttachment's PersistentVolume, if it is of one.
func volumeOf(va *storagev1.VolumeAttachment) []string {
	if name := ptr.Deref(va.Spec.Source.PersistentVolumeName, ""); name != "" {
		return []string{name}
	}
	return nil
}

// isLeft reports whether a PersistentVolume is being deleted and has the finalizer.
func (a *Attacher) isLeft(volume metav1.Object) bool {
	return volume.GetDeletionTimestamp() != nil && slices.Contains(volume.GetFinalizers(), a.finalizer)
}

// releaseVolume removes the finalizer that external-attacher puts on each PersistentVolume which it attaches, when that is being deleted and
// not attached any more. This attacher needs none: the VolumeAttachment records what has to be unpublished.
func (a *Attacher) releaseVolume(ctx context.Context, name string) error {
	pv, err := a.volumes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read persistent volume %q: %w", name, err)
	}
	users, err := a.factory.Storage().V1().VolumeAttachments().Informer().GetIndexer().IndexKeys(byVolume, name)
	if err != nil {
		return fmt.Errorf("find the attachments of persistent volume %q: %w", name, err)
	}
	if !a.isLeft(pv) || len(users) > 0 { // the deletion of the last one brings it back
		return nil
	}
	left := slices.DeleteFunc(slices.Clone(pv.Finalizers), func(f string) bool { return f == a.finalizer })
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": pv.UID, "resourceVersion": pv.ResourceVersion, "finalizers": left,
	}})
	if err != nil {
		return fmt.Errorf("encode patch of persistent volume %q: %w", name, err)
	}
	_, err = a.deps.Client.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer %q of persistent volume %q: %w", a.finalizer, name, err)
	}
	return nil
}
