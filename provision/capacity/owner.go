package capacity

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// OwnedByDriver returns the driver's CSIDriver object as the owner of what is published: when the driver is
// uninstalled, so is that. The client needs to get CSIDrivers. It is nil if there is no such object.
func OwnedByDriver(ctx context.Context, client kubernetes.Interface, driver string) (*metav1.OwnerReference, error) {
	object, err := client.StorageV1().CSIDrivers().Get(ctx, driver, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the owner of what is published: read CSIDriver %q: %w", driver, err)
	}
	return &metav1.OwnerReference{
		APIVersion: storagev1.SchemeGroupVersion.String(), Kind: "CSIDriver", Name: object.Name, UID: object.UID,
	}, nil
}

// OwnedByPod returns what controls the Pod (its StatefulSet, DaemonSet or ReplicaSet), or the Pod itself if nothing does,
// as the owner of what the Pod publishes in its namespace. The client needs to get the Pod.
func OwnedByPod(
	ctx context.Context, client kubernetes.Interface, namespace, pod string,
) (*metav1.OwnerReference, error) {
	object, err := client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("find the owner of what is published: read Pod %q: %w", namespace+"/"+pod, err)
	}
	if owner := metav1.GetControllerOf(object); owner != nil {
		return &metav1.OwnerReference{
			APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID}, nil
	}
	return &metav1.OwnerReference{
		APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Pod", Name: object.Name, UID: object.UID}, nil
}
