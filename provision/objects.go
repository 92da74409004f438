package provision

import (
	"encoding/json"
	"hash/fnv"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagehelpers "k8s.io/component-helpers/storage/volume"
)

// claimClass returns the name of the claim's class, from the deprecated annotation or the field, or "".
func claimClass(claim *corev1.PersistentVolumeClaim) string {
	return storagehelpers.GetPersistentVolumeClaimClass(claim)
}

// claimProvisioner returns the provisioner that the claim waits for, "" if it waits for none.
func claimProvisioner(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[storagehelpers.AnnStorageProvisioner]; ok {
		return name
	}
	return claim.Annotations[storagehelpers.AnnBetaStorageProvisioner]
}

// selectedNode returns the node that the scheduler selected for the claim's first consumer, "" if none.
func selectedNode(claim *corev1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[storagehelpers.AnnSelectedNode]; ok {
		return name
	}
	return claim.Annotations[annAlphaSelectedNode]
}

func wantsBlock(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

func waitsForConsumer(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

func isBound(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && claim.Status.Phase == corev1.ClaimBound
}

// dataSource returns the kind of the claim's data source, for the label of the metrics.
func dataSource(claim *corev1.PersistentVolumeClaim) string {
	switch {
	case claim.Spec.DataSourceRef != nil:
		return claim.Spec.DataSourceRef.Kind
	case claim.Spec.DataSource != nil:
		return claim.Spec.DataSource.Kind
	}
	return ""
}

// fingerprint changes when the claim or its class changes in a way that may change the outcome of provisioning. It does not
// change with what Kubernetes and this controller write while they work on the claim.
func fingerprint(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	key := "deleted"
	if claim != nil {
		annotations := maps.Clone(claim.Annotations)
		delete(annotations, storagehelpers.AnnBindCompleted)
		delete(annotations, storagehelpers.AnnBoundByController)
		sum := fnv.New64a()
		// The encoder sorts the keys of maps. Encoding these types and writing to a hash cannot fail.
		_ = json.NewEncoder(sum).Encode([]any{
			claim.Spec, annotations, claim.Labels, claim.DeletionTimestamp != nil,
		})
		key = strconv.FormatUint(sum.Sum64(), 16)
	}
	if class != nil {
		sum := fnv.New64a()
		without := *class
		without.ResourceVersion, without.ManagedFields = "", nil // with client-go's fake clientset the version never changes
		_ = json.NewEncoder(sum).Encode(without)
		key += "/" + strconv.FormatUint(sum.Sum64(), 16)
	}
	return key
}

// volumeFor completes the PersistentVolume that the provisioner returned for the claim.
func (e *engine) volumeFor(returned *corev1.PersistentVolume, in callInput) *corev1.PersistentVolume {
	pv := returned.DeepCopy()
	if pv.Name == "" {
		pv.Name = in.pvName
	}
	pv.Spec.ClaimRef = &corev1.ObjectReference{
		Kind: claimKind, APIVersion: coreVersion,
		Namespace: in.claim.Namespace, Name: in.claim.Name, UID: in.claim.UID,
		ResourceVersion: in.claim.ResourceVersion,
	}
	if pv.Annotations == nil {
		pv.Annotations = map[string]string{}
	}
	pv.Annotations[storagehelpers.AnnDynamicallyProvisioned] = e.name
	pv.Spec.StorageClassName = claimClass(in.claim)
	policy := pv.Spec.PersistentVolumeReclaimPolicy
	if e.settings.addFinalizer && policy == corev1.PersistentVolumeReclaimDelete {
		pv.Finalizers = appendMissing(pv.Finalizers, finalizerVolume)
	}
	return pv
}

func appendMissing(list []string, item string) []string {
	for _, have := range list {
		if have == item {
			return list
		}
	}
	return append(list, item)
}

// volumeFingerprint changes when a volume changes in a way that may change the outcome of deleting it.
func volumeFingerprint(pv *corev1.PersistentVolume) string {
	sum := fnv.New64a()
	_ = json.NewEncoder(sum).Encode([]any{pv.UID, pv.Spec, pv.Annotations, pv.Labels, pv.DeletionTimestamp != nil})
	return strconv.FormatUint(sum.Sum64(), 16)
}
