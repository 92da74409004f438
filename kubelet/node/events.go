package node

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// events records the events of the node. It is safe for concurrent use, but for recordReboot and startup.
type events struct {
	recorder record.EventRecorder // nil: none are recorded
	name     string               // of the node
	rebooted bool                 // the reboot was recorded
	startup  startup
}

// Reference returns a reference to the Node as events of its kubelet use it: the name stands for the UID.
func Reference(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: types.UID(name)}
}

// record records an event of the node.
func (e *events) record(kind, reason, format string, args ...any) {
	if e.recorder != nil {
		e.recorder.Eventf(Reference(e.name), kind, reason, format, args...)
	}
}

// recordReboot records an event if the machine was rebooted since the Node was last written.
func (e *events) recordReboot(node *corev1.Node, bootID string) {
	before := node.Status.NodeInfo.BootID
	if e.rebooted || before == "" || bootID == "" || before == bootID {
		return
	}
	e.rebooted = true
	e.record(corev1.EventTypeWarning, "Rebooted", "Node %s has been rebooted, boot id: %s", e.name, bootID)
}

// recordSchedulable records that the node was cordoned or uncordoned.
func (e *events) recordSchedulable(unschedulable bool) {
	reason := "NodeSchedulable"
	if unschedulable {
		reason = "NodeNotSchedulable"
	}
	e.record(corev1.EventTypeNormal, reason, "Node %s status is now: %s", e.name, reason)
}

// recordTransitions records events for conditions that changed.
func (e *events) recordTransitions(before, after *corev1.NodeStatus) {
	for _, condition := range after.Conditions {
		old := findCondition(before.Conditions, condition.Type)
		if old != nil && old.Status == condition.Status {
			continue
		}
		reason := ""
		switch {
		case condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue:
			reason = "NodeReady"
		case condition.Type == corev1.NodeReady:
			reason = "NodeNotReady"
		case (old != nil || condition.Status == corev1.ConditionTrue) && len(condition.Reason) > len("Kubelet"):
			reason = "Node" + condition.Reason[len("Kubelet"):] // KubeletHasDiskPressure -> NodeHasDiskPressure
		}
		if reason != "" {
			e.record(corev1.EventTypeNormal, reason, "Node %s status is now: %s", e.name, reason)
		}
	}
}
