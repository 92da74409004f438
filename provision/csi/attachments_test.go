package csi_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
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

// wakes runs WakeDeletions over these attachments and returns the volumes that it wakes, and how to end it.
func wakes(t *testing.T, client *fake.Clientset) (<-chan string, func()) {
	t.Helper()
	p, err := csi.New(csi.Deps{Client: client}, csi.Config{Name: driverName, Socket: socketPath(t)})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	woken, done := make(chan string, 10), make(chan error, 1)
	go func() { done <- p.WakeDeletions(ctx, func(volume string) { woken <- volume }) }()
	return woken, func() {
		stop()
		require.NoError(t, <-done)
	}
}

// Whose attachment goes is woken, of this driver's volumes alone.
func TestTheEndOfAnAttachmentWakes(t *testing.T) {
	objects := []*storagev1.VolumeAttachment{
		attachment("a", driverName, "pv-a"), attachment("foreign", "other.example.com", "pv-f"), attachment("b", driverName, "pv-b"),
	}
	client := fake.NewClientset(objects[0], objects[1], objects[2])
	woken, stop := wakes(t, client)
	defer stop()
	api := client.StorageV1().VolumeAttachments()
	// The watch is on once it tells of an attachment that came after it; deleted before that, the first one is missed.
	for i := 0; ; i++ {
		probe := attachment("probe", driverName, "probe")
		_, err := api.Create(t.Context(), probe, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, api.Delete(t.Context(), "probe", metav1.DeleteOptions{}))
		select {
		case volume := <-woken:
			require.Equal(t, "probe", volume)
		default:
			continue
		}
		break
	}
	for _, name := range []string{"foreign", "b", "a"} {
		require.NoError(t, api.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	var volumes []string
	for len(volumes) < 2 {
		if volume := <-woken; volume != "probe" {
			volumes = append(volumes, volume)
		}
	}
	require.Equal(t, []string{"pv-b", "pv-a"}, volumes)
}
