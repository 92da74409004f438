package explain

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/timeline"
)

func explainNode(ctx context.Context, src Source, _, name string) (*Explanation, error) {
	began := src.now()
	node, err := src.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", name, err)
	}
	now := src.now()
	q := &builder{src: src, now: now, ref: timeline.RefOf(KindNode, node)} // no component records stages of Nodes
	var heartbeat time.Time
	lease, err := src.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil && lease.Spec.RenewTime != nil:
		heartbeat = lease.Spec.RenewTime.Time
	case err != nil && !apierrors.IsNotFound(err):
		q.addUnseen("lease of node "+name, err)
	}
	pods := -1
	list, err := src.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String()})
	if err != nil {
		q.addUnseen("pods", err)
	} else {
		pods = 0
		for _, pod := range list.Items {
			if !podutil.IsTerminal(&pod.Status) {
				pods++
			}
		}
	}
	explanation := q.build(nodeState(node, heartbeat, pods, now))
	explanation.noteSlowAPI(began, now)
	return explanation, nil
}

// nodeState returns the finding about a Node; pods is the number of its running Pods, -1 if unknown.
func nodeState(node *corev1.Node, heartbeat time.Time, pods int, now time.Time) *finding {
	object := KindNode + "/" + node.Name
	found := &finding{state: Ready, reason: "Ready", next: "berth kubectl describe node " + node.Name}
	var trouble []string
	ready := false
	for _, condition := range node.Status.Conditions {
		switch {
		case condition.Type == corev1.NodeReady:
			ready = condition.Status == corev1.ConditionTrue
			found.since = condition.LastTransitionTime.Time
			if !ready {
				found.verdict = fmt.Sprintf("not ready for %s: %s", ago(now, found.since), condition.Message)
				found.evidence = append(found.evidence, Evidence{object, "status.conditions[Ready]", condition.Reason})
			}
		case condition.Status == corev1.ConditionTrue && keepsPodsAway(condition.Type):
			trouble = append(trouble, fmt.Sprintf("%s (%s)", condition.Type, condition.Message))
			found.evidence = append(found.evidence, Evidence{object, fmt.Sprintf("status.conditions[%s]", condition.Type), condition.Message})
		}
	}
	width := node.Status.Allocatable.Pods().Value()
	switch {
	case !ready:
		found.state, found.reason = Waiting, "NodeNotReady"
		if found.verdict == "" {
			found.verdict, found.since = "its kubelet has not reported yet", node.CreationTimestamp.Time
		}
		if !heartbeat.IsZero() {
			found.verdict += fmt.Sprintf("; its kubelet last renewed its lease %s ago", ago(now, heartbeat))
			found.evidence = append(found.evidence, Evidence{"Lease/" + node.Name, "spec.renewTime", heartbeat.UTC().Format(time.RFC3339)})
		}
	case len(trouble) > 0:
		found.state, found.reason = Waiting, "NodePressure"
		found.verdict = "ready, but takes no new pods: " + strings.Join(trouble, ", ")
	case node.Spec.Unschedulable:
		found.state, found.reason = Waiting, "Cordoned"
		found.verdict = "ready, but cordoned: the scheduler puts no new pods there"
		found.evidence = append(found.evidence, Evidence{object, "spec.unschedulable", "true"})
		found.next = "berth kubectl uncordon " + node.Name
	case pods >= 0 && width > 0 && int64(pods) >= width:
		found.state, found.reason = Waiting, "NodeFull"
		found.verdict = fmt.Sprintf("ready, but full: it runs %d pods, and %d is its limit", pods, width)
		found.evidence = append(found.evidence, Evidence{object, "status.allocatable.pods", fmt.Sprint(width)})
	default:
		found.next = ""
		found.verdict = "ready"
		if pods >= 0 {
			found.verdict = fmt.Sprintf("ready, runs %d of %d pods", pods, width)
		}
		if taints := taintText(node); taints != "" {
			found.verdict += "; tainted: " + taints
			found.evidence = append(found.evidence, Evidence{object, "spec.taints", taints})
		}
	}
	return found
}

func taintText(node *corev1.Node) string {
	var list []string
	for _, taint := range node.Spec.Taints {
		list = append(list, taint.ToString())
	}
	return strings.Join(list, ", ")
}
