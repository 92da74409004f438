package local

import (
	"crypto/sha256"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	// AnnDefaultClass is the annotation of a StorageClass that is the default.
	AnnDefaultClass = "storageclass.kubernetes.io/is-default-class"
	// ProvisionerName is the provisioner of a StorageClass of local directories.
	ProvisionerName = "berth.dev/local"
	// ClassName is the name of the class that StorageClass returns.
	ClassName = "berth-local"
	// AnnNode is the annotation of each volume with the node whose provisioner created it.
	AnnNode = "local.berth.dev/node"
	// ReasonSizeNotEnforced is the reason of the event on a claim whose volume may exceed the claim's size.
	ReasonSizeNotEnforced = "VolumeSizeNotEnforced"
)

// IntentFinalizer returns the value for provision.IntentFinalizer where several nodes have a provisioner each, so that each
// node has a finalizer of its own.
func IntentFinalizer(node string) string {
	const short = 16
	sum := sha256.Sum256([]byte(node))
	return "intent.local.berth.dev/" + hex.EncodeToString(sum[:short])
}

// StorageClass returns the class of local directories, as the default class. It binds when the first consumer is scheduled, because
// a directory is on one node. The caller owns it.
func StorageClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{
		TypeMeta: metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "StorageClass"},
		ObjectMeta: metav1.ObjectMeta{
			Name:        ClassName,
			Annotations: map[string]string{AnnDefaultClass: "true"},
		},
		Provisioner:       ProvisionerName,
		ReclaimPolicy:     ptr.To(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
}
