package explain

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
)

// Reasons of the status of Pods that their node has ended or rejected.
const (
	reasonEvicted      = "Evicted"
	reasonPreempting   = "Preempting"
	reasonTerminated   = "Terminated"
	reasonNodeShutdown = "NodeShutdown"
	reasonUnexpected   = "UnexpectedAdmissionError"
	reasonTopology     = "TopologyAffinityError"
	reasonSMTAlignment = "SMTAlignmentError"
)

// podEndedByNode explains a Pod that its node has ended or rejected for the sake of others, because a resource is short, because
// the machine shuts down, or because the Pod exceeds a limit of its own; nil for another Pod.
func podEndedByNode(f *facts) *finding {
	status := &f.pod.Status
	if status.Phase != corev1.PodFailed && status.Reason != reasonPreempting { // whose containers may have ended with exit code 0
		return nil
	}
	node := "node " + f.pod.Spec.NodeName
	message := strings.TrimSpace(status.Message)
	found := &finding{state: Failed, reason: status.Reason, heldBy: node, next: f.kubectl("get pods", "-o wide"),
		evidence: []Evidence{{"Pod/" + f.pod.Name, "status.message", message}}}
	if disrupted := podutil.FindCondition(status, corev1.DisruptionTarget); disrupted != nil {
		found.since = disrupted.LastTransitionTime.Time
	}
	const again = "; this Pod does not start again, its controller creates another one"
	switch status.Reason {
	case reasonEvicted:
		describeEviction(f, found, message)
	case reasonPreempting:
		found.verdict = "was ended by " + node + ", whose resources a critical Pod needed: " + message
		found.remedy = "add a node, or request less in critical Pods; Guaranteed Pods end last" + again
		if event := f.lastEvent(reasonPreempting); event != nil {
			found.evidence = append(found.evidence, Evidence{"Pod/" + f.pod.Name, "event", event.Reason + ": " + event.Message})
		}
	case reasonTerminated:
		found.verdict = "was ended by " + node + ", because its machine shut down: " + message
		found.remedy = "a Pod of a Deployment, StatefulSet or Job runs again, here or elsewhere; create any other one again when the machine is back"
	case reasonNodeShutdown:
		found.verdict = "was rejected by " + node + ", whose machine was shutting down: " + message
		found.remedy = "create the Pod again when the node is ready"
		found.next = "berth explain node/" + f.pod.Spec.NodeName
	case reasonUnexpected, reasonTopology, reasonSMTAlignment:
		describeRejection(f, found, message)
		found.remedy += again
	default:
		return nil
	}
	return found
}

// describeRejection explains a Pod that cannot have CPUs, memory or devices of its own on its node. The message names the manager that
// has rejected it, and what was free.
func describeRejection(f *facts, found *finding, message string) {
	found.next = "berth kubectl describe node " + f.pod.Spec.NodeName
	message = strings.TrimSuffix(strings.TrimPrefix(message, "Allocate failed due to "), ", which is unexpected")
	switch found.reason {
	case reasonTopology:
		found.verdict = fmt.Sprintf("was rejected by %s, whose topology manager does not find all resources on one set of NUMA nodes: %s", found.heldBy, message)
		found.remedy = "request what fits into one NUMA node, or configure the topology manager's policy best-effort"
	case reasonSMTAlignment:
		found.verdict = fmt.Sprintf("was rejected by %s, whose CPU manager gives away whole cores only: %s", found.heldBy, message)
		found.remedy = "request a multiple of the CPUs of a core"
	default:
		found.verdict = fmt.Sprintf("was rejected by %s, which cannot give it CPUs, memory or devices of its own: %s", found.heldBy, message)
		found.remedy = "end Pods that have them, or request less: the scheduler counts them, and does not know which are free on which NUMA node"
	}
}

// describeEviction explains an evicted Pod.
func describeEviction(f *facts, found *finding, message string) {
	node := found.heldBy
	found.heldBy = ""
	switch {
	case strings.Contains(message, "The node had condition:"):
		found.verdict = fmt.Sprintf("was rejected by %s, which is short of a resource: %s", node, message)
		found.heldBy, found.next = node, "berth kubectl describe node "+f.pod.Spec.NodeName
		found.remedy = "free the resource, or let the Pod request memory: a node that is short of memory alone takes Pods that do"
	case strings.HasPrefix(message, "The node was low on resource:"):
		_, rest, _ := strings.Cut(message, ": ")
		resource, _, _ := strings.Cut(rest, ".")
		found.verdict = fmt.Sprintf("was evicted by %s, which ran short of %s: %s", node, resource, message)
		found.heldBy, found.next = node, "berth kubectl describe node "+f.pod.Spec.NodeName
		found.remedy = "request as much as it uses: Pods that use more than they request are evicted first, and of these those of low priority"
	default:
		found.verdict = "was evicted: it exceeded a limit of its own: " + message
		found.next = f.kubectl("describe pod", f.pod.Name)
		found.remedy = "raise the limit, or write less to the containers' file systems, logs and emptyDirs"
	}
}
