package modify

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/expansion"
)

// modifyConditions are the conditions of a modification.
var modifyConditions = []corev1.PersistentVolumeClaimConditionType{
	corev1.PersistentVolumeClaimVolumeModifyingVolume, corev1.PersistentVolumeClaimVolumeModifyVolumeError,
}

// step is what to do for a claim.
type step int

const (
	// stepNone: nothing.
	stepNone step = iota
	// stepGiveUp: remove what a modification left that is not wanted any more.
	stepGiveUp
	// stepModify: apply a class.
	stepModify
)

func wantedClass(claim *corev1.PersistentVolumeClaim) string {
	return ptr.Deref(claim.Spec.VolumeAttributesClassName, "")
}

func currentClass(claim *corev1.PersistentVolumeClaim) string {
	return ptr.Deref(claim.Status.CurrentVolumeAttributesClassName, "")
}

// needsWork reports whether a claim's volume is to be, or was, modified. It is called for each change of each claim.
func needsWork(claim *corev1.PersistentVolumeClaim) bool {
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return false
	}
	want := wantedClass(claim)
	return claim.Status.ModifyVolumeStatus != nil || want != "" && want != currentClass(claim)
}

// decide returns what to do next for a claim that needsWork, and the class to apply.
func decide(claim *corev1.PersistentVolumeClaim) (step, string) {
	want, current, begun := wantedClass(claim), currentClass(claim), claim.Status.ModifyVolumeStatus
	switch {
	case want != "" && want != current:
		return stepModify, want
	case begun == nil:
		return stepNone, ""
	case !isUnknown(claim):
		return stepGiveUp, ""
	case want != "":
		return stepModify, want // back to the class that the volume had
	}
	return stepModify, begun.TargetVolumeAttributesClassName
}

// isUnknown reports whether the driver may be applying the target: it was called, and its response is unknown.
func isUnknown(claim *corev1.PersistentVolumeClaim) bool {
	begun := claim.Status.ModifyVolumeStatus
	return begun != nil && begun.Status == corev1.PersistentVolumeClaimModifyVolumeInProgress &&
		begun.TargetVolumeAttributesClassName != "" &&
		expansion.TrueCondition(claim, corev1.PersistentVolumeClaimVolumeModifyVolumeError) == nil
}
