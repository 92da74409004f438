package csi_test

import (
	"context"
	"testing"
	"time"

	csiapi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/provision/csi"
)

const noFinalizers = `{"metadata":{"finalizers":null}}`

// A released volume of the real driver that is still attached is refused to be deleted, and deleted as soon as its
// VolumeAttachment is gone, not just marked: the backoff of a failed deletion is an hour here, so nothing else can do
// it. The object of a volume with another finalizer stays until that is removed, without its storage.
func TestRealDeletionFollowsTheDetachment(t *testing.T) {
	client, own, class := realClient(t)
	config, driver := loopDriver(t, csidriver.Config{Name: class + ".example.com"})
	p := started(t, csi.Deps{Client: own}, csi.Config{Name: class + ".example.com", Socket: config.Endpoint})
	newController(t, own, class, p, time.Hour)
	claims(t, client, class, 1)
	var pv corev1.PersistentVolume
	until(t, client, class, func(volumes []corev1.PersistentVolume) bool {
		if allBound(1)(volumes) {
			pv = volumes[0]
			return true
		}
		return false
	})
	attachments := client.StorageV1().VolumeAttachments()
	attached := attachment("held-"+class, class+".example.com", pv.Name)
	attached.Finalizers = []string{"example.com/detaching"}
	_, err := attachments.Create(t.Context(), attached, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		_, _ = attachments.Patch(context.WithoutCancel(t.Context()), attached.Name, types.MergePatchType,
			[]byte(noFinalizers), metav1.PatchOptions{}) // else it outlives a test that failed
	})
	const foreign = "example.com/archive"
	volumes := client.CoreV1().PersistentVolumes()
	_, err = volumes.Patch(t.Context(), pv.Name, types.StrategicMergePatchType,
		[]byte(`{"metadata":{"finalizers":["`+foreign+`"]}}`), metav1.PatchOptions{})
	require.NoError(t, err)

	refused := deletionRefused(t, client, pv.Name)
	require.NoError(t, client.CoreV1().PersistentVolumeClaims(class).Delete(t.Context(), "claim-0", metav1.DeleteOptions{}))
	require.Contains(t, <-refused, `still attached to node "node-1"`)
	require.NoError(t, attachments.Delete(t.Context(), attached.Name, metav1.DeleteOptions{}))
	require.Len(t, handles(t, driver), 1, "a VolumeAttachment that is being deleted still holds its volume")
	_, err = attachments.Patch(t.Context(), attached.Name, types.MergePatchType, []byte(noFinalizers), metav1.PatchOptions{})
	require.NoError(t, err)

	until(t, client, class, func(volumes []corev1.PersistentVolume) bool {
		return len(volumes) == 1 && volumes[0].DeletionTimestamp != nil && onlyHolds(&volumes[0], foreign)
	})
	require.Empty(t, handles(t, driver))
	_, err = volumes.Patch(t.Context(), pv.Name, types.MergePatchType, []byte(noFinalizers), metav1.PatchOptions{})
	require.NoError(t, err)
	until(t, client, class, allBound(0))
}

// onlyHolds returns whether, beside Kubernetes' own, the finalizer is the only one of the volume.
func onlyHolds(pv *corev1.PersistentVolume, finalizer string) bool {
	found := false
	for _, f := range pv.Finalizers {
		switch f {
		case finalizer:
			found = true
		case "kubernetes.io/pv-protection":
		default:
			return false
		}
	}
	return found
}

// handles are what the driver has.
func handles(t *testing.T, driver csiapi.ControllerClient) []string {
	t.Helper()
	list, err := driver.ListVolumes(t.Context(), &csiapi.ListVolumesRequest{})
	require.NoError(t, err)
	var ids []string
	for _, entry := range list.GetEntries() {
		ids = append(ids, entry.GetVolume().GetVolumeId())
	}
	return ids
}

// deletionRefused returns the text of the first event that reports that the volume cannot be deleted.
func deletionRefused(t *testing.T, client kubernetes.Interface, volume string) <-chan string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	watcher, err := client.CoreV1().Events("").Watch(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.name=" + volume + ",reason=VolumeFailedDelete"})
	require.NoError(t, err)
	text, done := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(done)
		defer close(text)
		for event := range watcher.ResultChan() {
			if e, ok := event.Object.(*corev1.Event); ok && event.Type == watch.Added {
				text <- e.Message
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		watcher.Stop()
		<-done
	})
	return text
}
