package resize

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/internal/expansion"
)

// step is what is to be done for a claim.
type step int

const (
	// stepNone: nothing, or nothing before somebody else has moved.
	stepNone step = iota
	// stepCleanup: the claim has what it asks for; what tells of an expansion is taken away.
	stepCleanup
	// stepExpand: the driver is asked.
	stepExpand
)

func requestedSize(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	return claim.Spec.Resources.Requests[corev1.ResourceStorage]
}

func currentSize(claim *corev1.PersistentVolumeClaim) resource.Quantity {
	return claim.Status.Capacity[corev1.ResourceStorage]
}

// needsWork reports whether a claim is, or was, to grow. It is asked for each change of each claim.
func needsWork(claim *corev1.PersistentVolumeClaim) bool {
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return false
	}
	want, have := requestedSize(claim), currentSize(claim)
	_, began := claim.Status.AllocatedResources[corev1.ResourceStorage]
	return !have.IsZero() && (want.Cmp(have) > 0 || began)
}

// decide says what is next for a claim that is bound to the volume, and which size to ask the driver for.
func decide(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) (step, resource.Quantity) {
	want, have := requestedSize(claim), currentSize(claim)
	asked, began := claim.Status.AllocatedResources[corev1.ResourceStorage]
	stage := expansion.ResizeStatus(claim)
	// What may still be under way comes first: nobody knows how large the volume is.
	if stage == corev1.PersistentVolumeClaimControllerResizeInProgress && began && asked.Cmp(have) > 0 &&
		expansion.TrueCondition(claim, corev1.PersistentVolumeClaimControllerResizeError) == nil {
		return stepExpand, asked
	}
	if want.Cmp(have) <= 0 {
		return stepCleanup, want
	}
	size := pv.Spec.Capacity[corev1.ResourceStorage]
	switch stage {
	case corev1.PersistentVolumeClaimNodeResizePending, corev1.PersistentVolumeClaimNodeResizeInProgress:
		if size.Cmp(want) >= 0 {
			return stepNone, want // it is the node's turn
		}
	case corev1.PersistentVolumeClaimNodeResizeInfeasible:
		if began && asked.Cmp(want) == 0 {
			return stepNone, want // the same again would fail the same
		}
	}
	return stepExpand, want
}
