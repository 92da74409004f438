package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/timeline"
)

// finding is the result of one rule.
type finding struct {
	state        State
	reason       string
	verdict      string
	since        time.Time
	evidence     []Evidence
	remedy       string
	next         string
	heldBy       string
	nextChangeAt time.Time
	crashed      string // the container whose log is evidence
}

// podRules are tried in this order: first what ends a Pod, then the stages of its start. The first finding counts.
var podRules = []func(*facts) *finding{
	podDeleted,
	podFinished,
	podStatusRefused,
	podUnscheduled,
	podNodeGone,
	podAttach,
	podVolumes,
	podSandbox,
	podContainers,
	podReady,
}

func (f *facts) explain() *Explanation {
	explanation := &Explanation{
		APIVersion: APIVersion, Kind: Kind, Object: timeline.PodRef(f.pod),
		Stages: f.stages(), Trace: f.record.Trace, Unseen: f.unseen,
	}
	if f.recordStartsOnNode() {
		explanation.Unseen = append(explanation.Unseen, acceptedUnseen)
	}
	if f.recordIsOfOtherNode() {
		explanation.Unseen = append(explanation.Unseen, fmt.Sprintf("stages of the kubelet: the berth that was queried is not that of node %s; "+
			"on that node, `berth explain --socket` queries its berth, if it was started with a --socket", f.pod.Spec.NodeName))
	}
	explanation.TimeBreakdown = newTimeBreakdown(f.record, f.records)
	for _, rule := range podRules {
		found := rule(f)
		if found == nil {
			continue
		}
		explanation.State, explanation.Reason, explanation.Verdict = found.state, found.reason, found.verdict
		explanation.Since, explanation.Evidence, explanation.Next = found.since, found.evidence, found.next
		explanation.HeldBy, explanation.NextChangeAt, explanation.crashed = found.heldBy, found.nextChangeAt, found.crashed
		explanation.Remedy = found.remedy
		return explanation
	}
	explanation.HeldBy = "kubelet of node " + f.pod.Spec.NodeName
	explanation.State, explanation.Reason = Waiting, "Starting"
	explanation.Since = f.pod.CreationTimestamp.Time
	explanation.Verdict = fmt.Sprintf("waiting %s: the kubelet of node %s is starting it", f.ago(explanation.Since), f.pod.Spec.NodeName)
	if stage := f.currentStage(); stage != nil {
		explanation.Verdict += fmt.Sprintf(" (%s for %s)", trimSpaceRight(stage.Name+" "+stage.Subject), f.ago(stage.Start))
	}
	return explanation
}

// currentStage returns the stage in progress that began last; nil if there is none.
func (f *facts) currentStage() *timeline.Stage {
	for i := len(f.record.Stages) - 1; i >= 0; i-- {
		if stage := &f.record.Stages[i]; !stage.Done() {
			return stage
		}
	}
	return nil
}

func (f *facts) ago(t time.Time) string { return ago(f.now, t) }

func (f *facts) kubectl(verb, rest string) string { return kubectl(f.pod.Namespace, verb, rest) }

// stages joins the stages of the Pod and its claims. Without a record, the API's own times stand in.
func (f *facts) stages() []Stage {
	var all []Stage
	for _, record := range append([]timeline.Record{f.record}, f.records...) {
		for _, stage := range record.Stages {
			// Stages of a claim before the Pod was created are not the Pod's.
			if record.Ref.Kind != "Pod" && stage.Done() && stage.End.Before(f.pod.CreationTimestamp.Time) {
				continue
			}
			all = append(all, Stage{Stage: stage, Object: record.Ref.Kind + "/" + record.Ref.Name})
		}
	}
	if len(f.record.Stages) == 0 {
		all = append(all, f.apiStages()...)
	} else if f.recordStartsOnNode() {
		all = append(all, slices.DeleteFunc(f.apiStages(), func(s Stage) bool {
			return s.Name != timeline.StageAccepted && s.Name != timeline.StageScheduled
		})...)
	}
	return alignStages(all, f.now)
}

// recordStartsOnNode reports whether the record has the Pod's start on its node, but no earlier stage: the record of a
// `berth node`. A kubelet that was restarted sees its Pods again, long after they were bound.
func (f *facts) recordStartsOnNode() bool {
	bound := podutil.FindCondition(&f.pod.Status, corev1.PodScheduled)
	if bound == nil || bound.Status != corev1.ConditionTrue || hasStage(f.record, timeline.StageAccepted) {
		return false
	}
	const soon = 2 * time.Second // conditions have whole seconds
	return slices.ContainsFunc(f.record.Stages, func(s timeline.Stage) bool {
		return s.Name == timeline.StageSeen && s.Start.Sub(bound.LastTransitionTime.Time) < soon
	})
}

// recordIsOfOtherNode reports whether the record is of a berth on another node than the Pod's: it has no stages of a kubelet,
// though the Pod has been started.
func (f *facts) recordIsOfOtherNode() bool {
	return f.pod.Status.StartTime != nil && len(f.record.Stages) > 0 && !hasStage(f.record, timeline.StageSeen)
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (f *facts) apiStages() []Stage {
	mark := func(name string, t time.Time) Stage { return apiMark(KindPod, f.pod.Name, name, t) }
	stages := []Stage{mark(timeline.StageAccepted, f.pod.CreationTimestamp.Time)}
	for _, condition := range f.pod.Status.Conditions {
		if condition.Status != corev1.ConditionTrue {
			continue
		}
		switch condition.Type {
		case corev1.PodScheduled:
			stages = append(stages, mark(timeline.StageScheduled, condition.LastTransitionTime.Time))
		case corev1.PodReadyToStartContainers:
			stages = append(stages, mark(timeline.StageSandbox, condition.LastTransitionTime.Time))
		case corev1.PodReady:
			stages = append(stages, mark(timeline.StageReady, condition.LastTransitionTime.Time))
		}
	}
	return stages
}

func podDeleted(f *facts) *finding {
	if f.pod.DeletionTimestamp == nil {
		return nil
	}
	grace := int64(0)
	if f.pod.DeletionGracePeriodSeconds != nil {
		grace = *f.pod.DeletionGracePeriodSeconds
	}
	// The timestamp is when the grace ends, so the request came that much earlier.
	since := f.pod.DeletionTimestamp.Add(-time.Duration(grace) * time.Second)
	found := &finding{state: Terminating, reason: "Deleting", since: since, next: f.kubectl("describe pod", f.pod.Name),
		evidence: []Evidence{{"Pod/" + f.pod.Name, "metadata.deletionTimestamp", f.pod.DeletionTimestamp.Format(time.RFC3339)}}}
	switch {
	case len(f.pod.Finalizers) > 0:
		found.reason, found.heldBy = "Finalizer", strings.Join(f.pod.Finalizers, ", ")
		found.next = f.kubectl("get pod", f.pod.Name+" -o jsonpath={.metadata.finalizers}")
		found.verdict = fmt.Sprintf("deleting for %s: held by finalizer %s", f.ago(since), strings.Join(f.pod.Finalizers, ", "))
		found.evidence = append(found.evidence, Evidence{"Pod/" + f.pod.Name, "metadata.finalizers", strings.Join(f.pod.Finalizers, ", ")})
	case f.openStage(timeline.StageUnmount) != nil:
		f.describeUnmount(found)
	case f.nodeUnready() != nil:
		found.reason, found.heldBy = "NodeNotReady", "node "+f.pod.Spec.NodeName
		found.verdict = fmt.Sprintf("deleting for %s: its node %s is not ready, so its containers cannot be stopped", f.ago(since),
			f.pod.Spec.NodeName)
		found.next = "berth explain node/" + f.pod.Spec.NodeName
	case f.refusedStatus() != nil:
		f.describeRefusal(found, f.refusedStatus(), "deleting for")
	default:
		found.heldBy, found.nextChangeAt = "its containers", f.pod.DeletionTimestamp.Time
		found.verdict = fmt.Sprintf("deleting for %s: its containers have %d s to stop", f.ago(since), grace)
	}
	return found
}

// describeUnmount describes the progress of unmounting a Pod's volumes.
func (f *facts) describeUnmount(found *finding) {
	found.reason, found.heldBy = "Unmounting", "kubelet of node "+f.pod.Spec.NodeName
	found.verdict = fmt.Sprintf("deleting for %s: its containers are stopped, its volumes are being unmounted", f.ago(found.since))
	failed := f.openStage(timeline.StageUnmountOne)
	if failed != nil && failed.Error == "" {
		failed = f.lastFailure(timeline.StageUnmountOne, failed.Subject)
	}
	if call := f.openDriverCall(failed == nil); call != nil {
		found.reason, found.heldBy, found.remedy = "DriverCall", call.Owner, driverRemedy(call)
		found.verdict = fmt.Sprintf("deleting for %s: its containers are stopped; %s", f.ago(found.since), f.describeCall(call))
		found.evidence = append(found.evidence, Evidence{"Pod/" + f.pod.Name, "stage " + call.Name, call.Subject})
		return
	}
	if failed != nil {
		found.reason, found.remedy = "FailedUnmount", failed.Remedy
		found.verdict = fmt.Sprintf("deleting for %s: a volume cannot be unmounted (attempt %d): %s", f.ago(found.since), failed.Attempt, failed.Error)
		found.evidence = append(found.evidence, Evidence{"Pod/" + f.pod.Name, "stage " + failed.Name + " " + failed.Subject, failed.Error})
		return
	}
	if event := f.lastEvent("FailedUnMount", "FailedUnmount"); event != nil {
		found.reason = "FailedUnmount"
		found.verdict = fmt.Sprintf("deleting for %s: a volume cannot be unmounted: %s", f.ago(found.since), event.Message)
		found.evidence = append(found.evidence, Evidence{"Pod/" + f.pod.Name, "event", event.Reason + ": " + event.Message})
	}
}

func podFinished(f *facts) *finding {
	if found := podEndedByNode(f); found != nil {
		return found
	}
	status := f.pod.Status
	switch status.Phase {
	case corev1.PodSucceeded:
		return &finding{state: Succeeded, reason: "Completed", verdict: "all its containers have ended with exit code 0"}
	case corev1.PodFailed:
		found := &finding{state: Failed, reason: cmp.Or(status.Reason, "ContainerFailed"), verdict: "failed: " + status.Message,
			evidence: []Evidence{{"Pod/" + f.pod.Name, "status.reason", status.Reason}}}
		if status.Message != "" {
			return found
		}
		found.verdict = "failed: " + cmp.Or(status.Reason, "a container ended with an error")
		for _, container := range slices.Concat(status.InitContainerStatuses, status.ContainerStatuses) {
			if ended := container.State.Terminated; ended != nil && ended.ExitCode != 0 {
				found.verdict = fmt.Sprintf("failed: container %s ended with exit code %d", container.Name, ended.ExitCode)
				if ended.Reason != "" && ended.Reason != "Error" {
					found.verdict += " (" + ended.Reason + ")"
				}
				found.since, found.crashed = ended.FinishedAt.Time, container.Name
				found.next = f.kubectl("logs", f.pod.Name+" -c "+container.Name)
			}
		}
		return found
	}
	return nil
}

func podNodeGone(f *facts) *finding {
	if f.node == nil {
		if slices.ContainsFunc(f.unseen, func(s string) bool { return strings.HasPrefix(s, "node ") }) {
			return nil
		}
		return &finding{state: Waiting, reason: "NodeMissing", since: f.pod.CreationTimestamp.Time,
			verdict: fmt.Sprintf("its node %s does not exist any more", f.pod.Spec.NodeName),
			next:    f.kubectl("delete pod", f.pod.Name)}
	}
	if condition := f.nodeUnready(); condition != nil {
		return &finding{state: Waiting, reason: "NodeNotReady", since: condition.LastTransitionTime.Time, heldBy: "node " + f.node.Name,
			verdict: fmt.Sprintf("waiting %s: its node %s is not ready: %s", f.ago(condition.LastTransitionTime.Time), f.node.Name,
				condition.Message),
			evidence: []Evidence{{"Node/" + f.node.Name, "status.conditions[Ready]", condition.Reason}},
			next:     "berth explain node/" + f.node.Name}
	}
	return nil
}

// nodeUnready is the Ready condition of the Pod's node if it is not true.
func (f *facts) nodeUnready() *corev1.NodeCondition {
	if f.node == nil {
		return nil
	}
	for i := range f.node.Status.Conditions {
		condition := &f.node.Status.Conditions[i]
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return condition
		}
	}
	return nil
}

func podReady(f *facts) *finding {
	if ready := podutil.FindCondition(&f.pod.Status, corev1.PodReady); ready != nil && ready.Status == corev1.ConditionTrue {
		found := &finding{state: Ready, reason: "Ready", since: ready.LastTransitionTime.Time, verdict: "running and ready"}
		if took := f.startDuration(); took > 0 {
			found.verdict = fmt.Sprintf("running and ready, %s after it was accepted", formatStart(took))
		}
		return found
	}
	return nil
}

// formatStart is a duration in the unit in which people compare starts.
func formatStart(d time.Duration) string {
	if d >= 10*time.Second {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f ms", millis(d))
}

// startDuration returns the time from the Pod's acceptance until it was first ready, 0 if the record lacks one of them.
func (f *facts) startDuration() time.Duration {
	var accepted, ready time.Time
	for _, stage := range f.record.Stages {
		switch {
		case stage.Name == timeline.StageAccepted && accepted.IsZero():
			accepted = stage.Start
		case stage.Name == timeline.StageReady && ready.IsZero() && stage.Error == "":
			ready = stage.Start
		}
	}
	if accepted.IsZero() || ready.IsZero() {
		return 0
	}
	return ready.Sub(accepted)
}
