package csi_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision/csi"
)

func attachment(name, attacher, volume string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: attacher, NodeName: "node-1",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(volume)}},
	}
}

// startNotifier runs WakeDeletions over these attachments and returns the volumes that it wakes, and how to end it.
func startNotifier(t *testing.T, client *fake.Clientset) (<-chan string, func()) {
	t.Helper()
	p, err := csi.New(csi.Deps{Client: client}, csi.Config{Name: driverName, Socket: socketPath(t)})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	woken, done := make(chan string, 10), make(chan error, 1)
	go func() { done <- p.NotifyDeletable(ctx, func(volume string) { woken <- volume }) }()
	return woken, func() {
		stop()
		require.NoError(t, <-done)
	}
}

// Whose attachment goes is woken, of this driver's volumes alone.
func TestDeletedAttachmentNotifies(t *testing.T) {
	objects := []*storagev1.VolumeAttachment{
		attachment("a", driverName, "pv-a"), attachment("foreign", "other.example.com", "pv-f"), attachment("b", driverName, "pv-b"),
	}
	client := fake.NewClientset(objects[0], objects[1], objects[2])
	watched := make(chan struct{}, 10)
	noteWatches(client, "volumeattachments", watched)
	woken, stop := startNotifier(t, client)
	defer stop()
	<-watched
	api := client.StorageV1().VolumeAttachments()
	for _, name := range []string{"foreign", "b", "a"} {
		require.NoError(t, api.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	require.Equal(t, []string{"pv-b", "pv-a"}, []string{<-woken, <-woken})
}

// released is a volume of the driver that is to be deleted.
func released(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "id-of-" + name}}},
	}
}

// listed counts the questions for VolumeAttachments.
func listed(client *fake.Clientset) *atomic.Int32 {
	var count atomic.Int32
	client.PrependReactor("list", "volumeattachments", func(action clienttesting.Action) (bool, runtime.Object, error) {
		count.Add(1)
		// As an API server does: what any version will do for may be of before the newest attachment.
		if list, ok := action.(clienttesting.ListActionImpl); ok && list.ListOptions.ResourceVersion == "0" {
			return true, &storagev1.VolumeAttachmentList{}, nil
		}
		return false, nil, nil
	})
	return &count
}

// TestTheNewestAttachmentHoldsItsVolume deletes what has just been attached.
func TestTheNewestAttachmentHoldsItsVolume(t *testing.T) {
	client := cluster(attachment("a", driverName, "pv-a"), attachment("foreign", "other.example.com", "pv-b"))
	listed(client)
	config := csi.Config{Socket: socketPath(t)}
	newFakeDriver().serve(t, config.Socket)
	p := started(t, csi.Deps{Client: client}, config)
	require.ErrorContains(t, p.DeleteContext(t.Context(), released("pv-a")), `still attached to node "node-1"`)
	require.NoError(t, p.DeleteContext(t.Context(), released("pv-b")))
	require.NoError(t, client.StorageV1().VolumeAttachments().Delete(t.Context(), "a", metav1.DeleteOptions{}))
	require.NoError(t, p.DeleteContext(t.Context(), released("pv-a")))
}

// TestWatchedAttachmentIsNotListed: that a volume is attached the watch knows, and hears of its end.
func TestWatchedAttachmentIsNotListed(t *testing.T) {
	client := cluster(attachment("a", driverName, "pv-a"))
	count := listed(client)
	config := csi.Config{Socket: socketPath(t)}
	newFakeDriver().serve(t, config.Socket)
	p := started(t, csi.Deps{Client: client}, config)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.NotifyDeletable(ctx, func(string) {}) }()
	remove := func() error { return p.DeleteContext(t.Context(), released("pv-a")) }
	require.Eventually(t, func() bool {
		before := count.Load()
		return remove() != nil && count.Load() == before
	}, time.Minute, time.Millisecond, "each refusal asks the API")
	stop()
	require.NoError(t, <-done)
	require.NoError(t, client.StorageV1().VolumeAttachments().Delete(t.Context(), "a", metav1.DeleteOptions{}))
	require.NoError(t, remove(), "without a watch no volume is kept")
}
