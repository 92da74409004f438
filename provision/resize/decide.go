package resize

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/internal/expansion"
)

// step is what to do for a claim.
type step int

const (
	// stepNone: nothing, or nothing before the node has expanded the volume or the claim has changed.
	stepNone step = iota
	// stepCleanup: the claim has what it requests; remove what an expansion left.
	stepCleanup
	// stepExpand: call the driver.
	stepExpand
	// stepRetryNode: call the driver again after a delay, so that the node tries again what it found infeasible.
	stepRetryNode
)

func requestedSize(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	return claim.Spec.Resources.Requests[corev1.ResourceStorage]
}

func currentSize(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	return claim.Status.Capacity[corev1.ResourceStorage]
}

// needsWork reports whether a claim is to be, or was, expanded. It is called for each change of each claim.
func needsWork(claim *corev1.PersistentVolumeClaim) bool {
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return false
	}
	want, have := requestedSize(claim), currentSize(claim)
	_, isAllocated := claim.Status.AllocatedResources[corev1.ResourceStorage]
	return !have.IsZero() && (want.Cmp(have) > 0 || isAllocated)
}

// decide returns what to do next for a claim that is bound to the volume, and the size to request from the driver.
func decide(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) (step, resource.Quantity) {
	want, have := requestedSize(claim), currentSize(claim)
	allocated, isAllocated := claim.Status.AllocatedResources[corev1.ResourceStorage]
	stage := expansion.ResizeStatus(claim)
	// A call with an unknown outcome comes first.
	if stage == corev1.PersistentVolumeClaimControllerResizeInProgress && isAllocated && allocated.Cmp(have) > 0 &&
		expansion.TrueCondition(claim, corev1.PersistentVolumeClaimControllerResizeError) == nil {
		return stepExpand, allocated
	}
	if want.Cmp(have) <= 0 {
		return stepCleanup, want
	}
	size := pv.Spec.Capacity[corev1.ResourceStorage]
	switch stage {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		if size.Cmp(want) >= 0 {
			return stepNone, want // the node has to expand it
		}
	case corev1.PersistentVolumeClaimNodeResizeInfeasible:
		if isAllocated && allocated.Cmp(want) == 0 {
			return stepRetryNode, want // the cause may be gone: a full disk, an older version of the driver
		}
	}
	return stepExpand, want
}
