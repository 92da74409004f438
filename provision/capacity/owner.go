package capacity

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// owner returns the owner of the objects: the configured one, or the driver's CSIDriver object if it exists.
func (p *Publisher) owner() *metav1.OwnerReference {
	if p.config.Owner != nil {
		return p.config.Owner
	}
	driver, err := p.drivers.Get(p.config.DriverName)
	if err != nil {
		return nil // a lister has no other error than "not found"
	}
	return &metav1.OwnerReference{
		APIVersion: storagev1.SchemeGroupVersion.String(), Kind: "CSIDriver", Name: driver.Name, UID: driver.UID,
	}
}

// OwnerForPod returns the owner of what a Pod publishes in its namespace: the controller of the Pod (its StatefulSet,
// DaemonSet or ReplicaSet), or the Pod itself if it has none. The client needs the right to get the Pod.
func OwnerForPod(
	ctx context.Context, client kubernetes.Interface, namespace, pod string,
) (*metav1.OwnerReference, error) {
	object, err := client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("find owner of CSIStorageCapacity objects: get Pod %q: %w", namespace+"/"+pod, err)
	}
	if owner := metav1.GetControllerOf(object); owner != nil {
		return &metav1.OwnerReference{
			APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID}, nil
	}
	return &metav1.OwnerReference{
		APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Pod", Name: object.Name, UID: object.UID}, nil
}
