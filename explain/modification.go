package explain

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/timeline"
)

// wantsModification returns whether a claim names a VolumeAttributesClass that its volume does not have, or left one half done.
func wantsModification(claim *corev1.PersistentVolumeClaim) bool {
	want, have := ptr.Deref(claim.Spec.VolumeAttributesClassName, ""), ptr.Deref(claim.Status.CurrentVolumeAttributesClassName, "")
	return claim.Status.Phase == corev1.ClaimBound && (want != "" && want != have || claim.Status.ModifyVolumeStatus != nil)
}

// modifying returns what the modification of the claim's volume waits for; nil if the volume has the class that the claim names.
func (f *claimFacts) modifying(object string) *finding {
	if !wantsModification(f.claim) {
		return nil
	}
	want, have := ptr.Deref(f.claim.Spec.VolumeAttributesClassName, ""), ptr.Deref(f.claim.Status.CurrentVolumeAttributesClassName, "")
	found := &finding{state: Waiting, reason: "ModificationPending",
		verdict:  fmt.Sprintf("waiting: its volume has %s, and it names %s", classText(have), classText(want)),
		evidence: []Evidence{{object, "status.currentVolumeAttributesClassName", have}, {object, "spec.volumeAttributesClassName", want}},
		next:     kubectl(f.claim.Namespace, "describe pvc", f.claim.Name)}
	if f.volume == nil || f.volume.Spec.CSI == nil {
		found.verdict += "; its volume is not one of a CSI driver, and other volumes have no such classes"
		return found
	}
	f.modificationState(object, found)
	return found
}

func classText(class string) string {
	if class == "" {
		return "no VolumeAttributesClass"
	}
	return "VolumeAttributesClass " + class
}

// modificationState describes the progress of a modification.
func (f *claimFacts) modificationState(object string, found *finding) {
	driver := f.volume.Spec.CSI.Driver
	found.heldBy = "driver " + driver
	failed, open := lastAttempt(f.record, timeline.StageModifying)
	said := conditionMessage(f.claim, corev1.PersistentVolumeClaimVolumeModifyVolumeError)
	if failed != nil {
		found.remedy = failed.Remedy
	}
	var state corev1.PersistentVolumeClaimModifyVolumeStatus
	if begun := f.claim.Status.ModifyVolumeStatus; begun != nil {
		state = begun.Status
		found.evidence = append(found.evidence,
			Evidence{object, "status.modifyVolumeStatus", fmt.Sprintf("%s %s", state, begun.TargetVolumeAttributesClassName)})
	}
	switch {
	case state == corev1.PersistentVolumeClaimModifyVolumePending:
		found.reason, found.heldBy = "ModificationWaitsForClass", "VolumeAttributesClass "+f.claim.Status.ModifyVolumeStatus.TargetVolumeAttributesClassName
		found.verdict += "; " + found.heldBy + " does not exist"
		found.remedy = "create it, or name another one in the claim's spec.volumeAttributesClassName"
	case state == corev1.PersistentVolumeClaimModifyVolumeInfeasible:
		found.reason = "ModificationInfeasible"
		found.verdict += "; driver " + driver + " cannot do that: " + said
		found.remedy = "name a VolumeAttributesClass that the driver accepts, or the previous one, in the claim's spec.volumeAttributesClassName"
	case failed != nil:
		found.reason = "ModificationFailed"
		found.verdict += fmt.Sprintf("; applying it has failed (attempt %d): %s", failed.Attempt, failed.Error)
		found.evidence = append(found.evidence, Evidence{failed.Owner, "stage " + failed.Name, failed.Error})
	case said != "":
		found.reason = "ModificationFailed"
		found.verdict += "; applying it has failed: " + said
	case open != nil:
		found.verdict += fmt.Sprintf("; driver %s is applying it since %s", driver, ago(f.now, open.Start))
	case state == corev1.PersistentVolumeClaimModifyVolumeInProgress:
		found.verdict += "; driver " + driver + " is applying it"
	default:
		found.heldBy = "resizer of driver " + driver
		found.verdict += "; it waits for " + found.heldBy
		found.remedy = "run one for the driver: `berth controllers --csi-driver`, `berth csi-provisioner --enable-resizer` beside the " +
			"driver, or external-resizer"
	}
	if said != "" {
		found.evidence = append(found.evidence, Evidence{object, "status.conditions[ModifyVolumeError]", said})
	}
}
