// Package expansion reads the state of a claim's volume expansion, for the resizer, the kubelet, and explain.
package expansion

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// AnnotationNodeExpansionNotRequired is an annotation of claims whose volumes several nodes may write to: expanding such a
// volume needs no step on the nodes. A resizer sets it because the driver says so, and kubelets honour it (Kubernetes
// 1.34).
const AnnotationNodeExpansionNotRequired = "volume.kubernetes.io/node-expansion-not-required"

// IsShared reports whether several nodes may write to the claim's volume.
func IsShared(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany)
}

// RequiredOnEveryNode reports whether every node that has the claim's volume must expand it, so that the new size in the
// claim's status, which one node writes, does not mean that all are done.
func RequiredOnEveryNode(claim *corev1.PersistentVolumeClaim) bool {
	_, idle := claim.Annotations[AnnotationNodeExpansionNotRequired]
	return IsShared(claim) && !idle
}

// ResizeStatus returns the claim's status.allocatedResourceStatuses of its storage (KEP-1790); "" if unset.
func ResizeStatus(claim *corev1.PersistentVolumeClaim) corev1.ClaimResourceStatus {
	return claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
}

// ConditionsExcept returns a new slice of the claim's conditions without those of the kinds. It is never nil, so that a
// patch with it can clear the list.
func ConditionsExcept(claim *corev1.PersistentVolumeClaim, kinds ...corev1.PersistentVolumeClaimConditionType,
) []corev1.PersistentVolumeClaimCondition {
	rest := []corev1.PersistentVolumeClaimCondition{}
	for _, c := range claim.Status.Conditions {
		if !slices.Contains(kinds, c.Type) {
			rest = append(rest, c)
		}
	}
	return rest
}

// TrueCondition returns the claim's condition of that kind if it is true, else nil. It points into the claim.
func TrueCondition(claim *corev1.PersistentVolumeClaim, kind corev1.PersistentVolumeClaimConditionType,
) *corev1.PersistentVolumeClaimCondition {
	for i := range claim.Status.Conditions {
		if c := &claim.Status.Conditions[i]; c.Type == kind {
			if c.Status == corev1.ConditionTrue {
				return c
			}
			return nil
		}
	}
	return nil
}
