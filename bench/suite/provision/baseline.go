package provision

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// baselineWorkers write volumes at the same time.
const baselineWorkers = 16

// runBaseline is the least that any provisioner can do: one write for each claim as soon as Kubernetes asks for its
// volume, without retries, events or anything against leaks. What is left of the time is Kubernetes' own.
func runBaseline(ctx context.Context, client kubernetes.Interface, name string) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().PersistentVolumeClaims().Informer()
	asked := make(chan *corev1.PersistentVolumeClaim, 1)
	wanted := func(obj any) bool {
		claim, is := obj.(*corev1.PersistentVolumeClaim)
		return is && claim.Annotations["volume.kubernetes.io/storage-provisioner"] == name && claim.Spec.VolumeName == ""
	}
	give := func(obj any) {
		select {
		case asked <- obj.(*corev1.PersistentVolumeClaim):
		case <-ctx.Done():
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if wanted(obj) {
				give(obj)
			}
		},
		UpdateFunc: func(old, obj any) {
			if wanted(obj) && !wanted(old) {
				give(obj)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch claims: %w", err)
	}
	var workers sync.WaitGroup
	for range baselineWorkers {
		workers.Go(func() { writeVolumes(ctx, client, name, asked) })
	}
	factory.StartWithContext(ctx)
	workers.Wait()
	factory.Shutdown()
	return nil
}

func writeVolumes(
	ctx context.Context, client kubernetes.Interface, name string, asked <-chan *corev1.PersistentVolumeClaim,
) {
	for {
		select {
		case <-ctx.Done():
			return
		case claim := <-asked:
			pv := volume("pvc-"+string(claim.UID), corev1.PersistentVolumeReclaimDelete, claim)
			pv.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": name}
			pv.Spec.StorageClassName = *claim.Spec.StorageClassName
			pv.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion}
			// A volume that is not written shows: its claim is never bound, and the sample fails.
			_, _ = client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
		}
	}
}
