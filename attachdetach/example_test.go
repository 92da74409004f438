package attachdetach_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/attachdetach"
)

// The controller attaches the volume of a scheduled Pod by creating a VolumeAttachment, which the driver's attacher (package
// attacher, or the external-attacher sidecar) handles.
func ExampleController() {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "claim-uid"}}
	claim.Spec.VolumeName, claim.Status.Phase = "pv-data", corev1.ClaimBound
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-data"}}
	volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "data", UID: "claim-uid"}
	volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: "disk-1"}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Annotations: map[string]string{
		"volumes.kubernetes.io/controller-managed-attach-detach": "true",
	}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "pod-uid"}}
	pod.Spec.NodeName = "node-1"
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
	client := fake.NewClientset(claim, volume, node, pod)

	controller, err := attachdetach.New(attachdetach.Deps{Client: client}, attachdetach.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	attachments, err := client.StorageV1().VolumeAttachments().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer attachments.Stop()
	ended := make(chan error, 1)
	go func() { ended <- controller.Start(ctx) }()
	select {
	case event := <-attachments.ResultChan():
		fmt.Println(event.Type)
	case <-ctx.Done():
	}
	stop()
	fmt.Println("ended:", <-ended)
	// Output:
	// ADDED
	// ended: <nil>
}
