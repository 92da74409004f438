// Package expansion reads what a claim's status tells of its way to a larger size, for all who have a part in that: the
// resizer, the node agent, and explain.
package expansion

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Stage is how far the claim's volume has come; "" if nobody says. It is status.allocatedResourceStatuses of KEP-1790.
func Stage(claim *corev1.PersistentVolumeClaim) corev1.ClaimResourceStatus {
	return claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
}

// Without are the claim's conditions but those of the kinds, in a slice of its own. It is never nil, so that a patch with
// it empties the list.
func Without(claim *corev1.PersistentVolumeClaim, kinds ...corev1.PersistentVolumeClaimConditionType,
) []corev1.PersistentVolumeClaimCondition {
	rest := []corev1.PersistentVolumeClaimCondition{}
	for _, c := range claim.Status.Conditions {
		if !slices.Contains(kinds, c.Type) {
			rest = append(rest, c)
		}
	}
	return rest
}

// Condition is the claim's condition of that kind if it is true, else nil. It is the claim's own.
func Condition(claim *corev1.PersistentVolumeClaim, kind corev1.PersistentVolumeClaimConditionType,
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
