// Package expansion reads what a claim tells of its way to a larger size, for all who have a part in that: the
// resizer, the node agent, and explain.
package expansion

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// AnnotationNodeExpansionNotRequired is an annotation of claims whose volumes several nodes may write to: when such a volume grows, nothing is to do
// on nodes. A resizer sets it because the driver says so, and node agents heed it (Kubernetes 1.34).
const AnnotationNodeExpansionNotRequired = "volume.kubernetes.io/node-expansion-not-required"

// IsShared reports whether several nodes may write to the claim's volume.
func IsShared(claim *corev1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany)
}

// RequiredOnEveryNode reports whether each node that has the claim's volume has a part in making it larger, so that it is not
// enough that one of them tells the claim's new size.
func RequiredOnEveryNode(claim *corev1.PersistentVolumeClaim) bool {
	_, idle := claim.Annotations[AnnotationNodeExpansionNotRequired]
	return IsShared(claim) && !idle
}

// ResizeStatus is how far the claim's volume has come; "" if nobody says. It is status.allocatedResourceStatuses of KEP-1790.
func ResizeStatus(claim *corev1.PersistentVolumeClaim) corev1.ClaimResourceStatus {
	return claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
}

// ConditionsExcept are the claim's conditions but those of the kinds, in a slice of its own. It is never nil, so that a patch with
// it empties the list.
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

// TrueCondition is the claim's condition of that kind if it is true, else nil. It is the claim's own.
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
