package csidriver

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
)

// ClassName is the name of the class that StorageClass returns.
const ClassName = "berth-loop"

// StorageClass returns the class for real disks of limited size: it binds at the first consumer, because a disk belongs
// to one node, and its volumes can be expanded. On the node, setuid bits and device nodes in them have no effect.
// In a container they have: its runtime decides about the options of its mounts. The caller owns it.
func StorageClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{
		TypeMeta:             metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "StorageClass"},
		ObjectMeta:           metav1.ObjectMeta{Name: ClassName},
		Provisioner:          Name,
		Parameters:           map[string]string{reservedParameters + "fstype": DefaultFSType},
		MountOptions:         []string{"nodev", "nosuid"},
		ReclaimPolicy:        ptr.To(corev1.PersistentVolumeReclaimDelete),
		AllowVolumeExpansion: ptr.To(true),
		VolumeBindingMode:    ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
}

// CSIDriver returns the object that describes the driver to Kubernetes: volumes are attached first, the kubelet applies a
// Pod's fsGroup, and the scheduler checks the capacity (package provision/capacity publishes it). The caller owns it.
func CSIDriver() *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		TypeMeta:   metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "CSIDriver"},
		ObjectMeta: metav1.ObjectMeta{Name: Name},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired:       ptr.To(true),
			PodInfoOnMount:       ptr.To(false),
			StorageCapacity:      ptr.To(true),
			FSGroupPolicy:        ptr.To(storagev1.FileFSGroupPolicy),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		},
	}
}

// VolumeSnapshotClass returns the driver's default class for snapshots. The caller owns it. It has no Go type, because its
// kind is a custom resource.
func VolumeSnapshotClass() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
		"metadata": map[string]any{
			"name": ClassName, "annotations": map[string]any{"snapshot.storage.kubernetes.io/is-default-class": "true"},
		},
		"driver": Name, "deletionPolicy": "Delete",
	}}
}
