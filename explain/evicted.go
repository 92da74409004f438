package explain

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
)

// podEvicted explains a Pod that its node has ended or rejected because a resource is short, or because the Pod exceeds a limit of
// its own; nil for another Pod.
func podEvicted(f *facts) *finding {
	status := &f.pod.Status
	if status.Phase != corev1.PodFailed || status.Reason != "Evicted" {
		return nil
	}
	message := strings.TrimSpace(status.Message)
	found := &finding{state: Failed, reason: "Evicted", evidence: []Evidence{{"Pod/" + f.pod.Name, "status.message", message}}}
	if disrupted := podutil.FindCondition(status, corev1.DisruptionTarget); disrupted != nil {
		found.since = disrupted.LastTransitionTime.Time
	}
	node := "node " + f.pod.Spec.NodeName
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
	return found
}
