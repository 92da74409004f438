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
	// ProvisionerName is what a StorageClass of local directories names as its provisioner.
	ProvisionerName = "berth.dev/local"
	// ClassName is the name of the class that StorageClass returns.
	ClassName = "berth-local"
	// AnnNode is the annotation that says, on each volume, which node's provisioner made it.
	AnnNode = "local.berth.dev/node"
	// ReasonSizeNotEnforced is the event on a claim whose volume may grow beyond the claim's size.
	ReasonSizeNotEnforced = "VolumeSizeNotEnforced"
)

// IntentFinalizer is what to give provision.IntentFinalizer where several nodes have a provisioner each: no
// node then takes another one's intent for its own.
func IntentFinalizer(node string) string {
	const short = 16
	sum := sha256.Sum256([]byte(node))
	return "intent.local.berth.dev/" + hex.EncodeToString(sum[:short])
}

// StorageClass returns the class that a cluster of Berth's starts with: the default class, binding at the
// first consumer, because a directory is where its node is. The caller owns it.
func StorageClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{
		TypeMeta: metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "StorageClass"},
		ObjectMeta: metav1.ObjectMeta{
			Name:        ClassName,
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"},
		},
		Provisioner:       ProvisionerName,
		ReclaimPolicy:     ptr.To(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
}
