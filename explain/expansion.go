package explain

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/expansion"
	"github.com/berth-dev/berth/timeline"
)

// wantsExpansion returns whether a claim asks for more than it has.
func wantsExpansion(claim *corev1.PersistentVolumeClaim) bool {
	want, have := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
	return claim.Status.Phase == corev1.ClaimBound && !have.IsZero() && want.Cmp(have) > 0
}

// expanding says what the claim's expansion waits for; nil if the claim has the size that it requests.
func (f *claimFacts) expanding(object string) *finding {
	if !wantsExpansion(f.claim) {
		return nil
	}
	want, have := f.claim.Spec.Resources.Requests[corev1.ResourceStorage], f.claim.Status.Capacity[corev1.ResourceStorage]
	found := &finding{state: Waiting, reason: "ExpansionPending",
		verdict:  fmt.Sprintf("waiting: it has %s and asks for %s", &have, &want),
		evidence: []Evidence{{object, "status.capacity[storage]", have.String()}, {object, "spec.resources.requests[storage]", want.String()}},
		next:     kubectl(f.claim.Namespace, "describe pvc", f.claim.Name)}
	if stage := expansion.ResizeStatus(f.claim); stage != "" {
		found.evidence = append(found.evidence, Evidence{object, "status.allocatedResourceStatuses[storage]", string(stage)})
	}
	if f.volume == nil || f.volume.Spec.CSI == nil {
		found.verdict += "; its volume is not one of a CSI driver, and other volumes cannot be expanded"
		return found
	}
	if size := f.volume.Spec.Capacity[corev1.ResourceStorage]; size.Cmp(want) >= 0 {
		f.nodeExpansion(object, found)
	} else {
		f.controllerExpansion(object, found)
	}
	return found
}

// controllerExpansion describes the progress of the driver's part of an expansion.
func (f *claimFacts) controllerExpansion(object string, found *finding) {
	driver := f.volume.Spec.CSI.Driver
	found.heldBy = "driver " + driver
	failed, open := lastAttempt(f.record, timeline.StageExpanding)
	stage := expansion.ResizeStatus(f.claim)
	said := conditionMessage(f.claim, corev1.PersistentVolumeClaimControllerResizeError)
	switch {
	case stage == corev1.PersistentVolumeClaimControllerResizeInfeasible:
		found.reason = "ExpansionInfeasible"
		found.verdict += "; driver " + driver + " cannot give it that: " + said
		found.remedy = "ask for less: any size above what it has"
	case failed != nil:
		found.reason, found.remedy = "ExpansionFailed", failed.Remedy
		found.verdict += fmt.Sprintf("; making its volume larger has failed (attempt %d): %s", failed.Attempt, failed.Error)
		found.evidence = append(found.evidence, Evidence{failed.Owner, "stage " + failed.Name, failed.Error})
	case said != "":
		found.reason = "ExpansionFailed"
		found.verdict += "; making its volume larger has failed: " + said
	case open != nil:
		found.verdict += fmt.Sprintf("; driver %s is making its volume larger since %s", driver, ago(f.now, open.Start))
	case stage == corev1.PersistentVolumeClaimControllerResizeInProgress:
		found.verdict += "; driver " + driver + " is making its volume larger"
	default:
		f.noResizer(driver, found)
	}
	if said != "" {
		found.evidence = append(found.evidence, Evidence{object, "status.conditions[ControllerResizeError]", said})
	}
}

// noResizer describes an expansion that no resizer has started.
func (f *claimFacts) noResizer(driver string, found *finding) {
	if event := lastEvent(f.events, "VolumeResizeFailed"); event != nil {
		found.reason = "ExpansionFailed"
		found.verdict += "; " + event.Message
		return
	}
	found.heldBy = "resizer of driver " + driver
	found.verdict += "; it waits for " + found.heldBy
	found.remedy = "run a resizer for the driver: `berth controllers --csi-driver`, `berth csi-provisioner --enable-resizer` beside the " +
		"driver, or external-resizer"
}

// nodeExpansion describes the progress of the node's part of an expansion, the file system.
func (f *claimFacts) nodeExpansion(object string, found *finding) {
	found.heldBy = "kubelet"
	failed, open := lastAttempt(f.record, timeline.StageGrowing)
	stage := expansion.ResizeStatus(f.claim)
	said := conditionMessage(f.claim, corev1.PersistentVolumeClaimNodeResizeError)
	if said == "" && failed != nil {
		said, found.remedy = failed.Error, failed.Remedy
	}
	if said != "" {
		found.evidence = append(found.evidence, Evidence{object, "status.conditions[NodeResizeError]", said})
	}
	switch {
	case stage == corev1.PersistentVolumeClaimNodeResizeInfeasible:
		found.reason = "ExpansionInfeasible"
		found.verdict += "; its volume has grown, and its node cannot make the file system follow: " + said
	case said != "":
		found.reason = "ExpansionFailed"
		found.verdict += "; its volume has grown, and making the file system follow has failed: " + said
	case stage == corev1.PersistentVolumeClaimControllerResizeInProgress:
		found.heldBy = "resizer of driver " + f.volume.Spec.CSI.Driver
		found.verdict += "; its volume has grown, and " + found.heldBy + " is about to report whether the node must expand it, too"
	case open != nil:
		found.verdict += "; its volume has grown, and the file system follows since " + ago(f.now, open.Start)
	case len(f.users) == 0:
		found.verdict += "; its volume has grown, and the file system follows when a pod uses it"
	default:
		found.verdict += "; its volume has grown, and the file system follows on the node of " + names("pod", f.users)
	}
}

// conditionMessage is what a condition that is true says; "" if there is none.
func conditionMessage(claim *corev1.PersistentVolumeClaim, kind corev1.PersistentVolumeClaimConditionType) string {
	if condition := expansion.TrueCondition(claim, kind); condition != nil {
		return condition.Message
	}
	return ""
}
