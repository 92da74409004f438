package attacher_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestVolumesThatExternalAttacherHasAttached deletes PersistentVolumes that have its finalizer. One is attached and one is not.
func TestVolumesThatExternalAttacherHasAttached(t *testing.T) {
	w := newFixture(t)
	w.create("va", driverName)
	w.eventually(func() bool { return w.get("va").Status.Attached }, "it must be attached")
	volumes := w.client.CoreV1().PersistentVolumes()
	finalizers := func(name string) []string {
		pv, err := volumes.Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		return pv.Finalizers
	}
	pv, err := volumes.Get(t.Context(), "pv", metav1.GetOptions{})
	require.NoError(t, err)
	pv.Finalizers = []string{"kubernetes.io/pv-protection", "external-attacher/disk-example-com", "external-attacher/other"}
	other := pv.DeepCopy()
	other.Name = "other"
	_, err = volumes.Create(t.Context(), other, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, one := range []*corev1.PersistentVolume{pv, other} {
		one.DeletionTimestamp = ptr.To(metav1.Now())
		_, err = volumes.Update(t.Context(), one, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	left := []string{"kubernetes.io/pv-protection", "external-attacher/other"}
	w.eventually(func() bool { return len(finalizers("other")) == 2 }, "it is not attached")
	require.Equal(t, left, finalizers("other"))
	require.Len(t, finalizers("pv"), 3, "it is attached")

	w.remove("va")
	w.waitDetached("va")
	require.NoError(t, w.client.StorageV1().VolumeAttachments().Delete(t.Context(), "va", metav1.DeleteOptions{}))
	w.eventually(func() bool { return len(finalizers("pv")) == 2 }, "it is attached no more")
	require.Equal(t, left, finalizers("pv"))
}
