package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/timeline"
)

func podUnscheduled(f *facts) *finding {
	if f.pod.Spec.NodeName != "" {
		return nil
	}
	if found := f.claimProblem(); found != nil {
		return found
	}
	since := f.pod.CreationTimestamp.Time
	if len(f.nodes) == 0 && !f.isUnseen("nodes") {
		return &finding{state: Waiting, reason: "NoNodes", since: since,
			verdict: fmt.Sprintf("waiting %s: the cluster has no node", f.ago(since)), next: "berth kubectl get nodes"}
	}
	found := &finding{state: Waiting, reason: "Unscheduled", since: since, next: f.kubectl("describe pod", f.pod.Name),
		verdict: fmt.Sprintf("waiting %s: the scheduler has not looked at it yet", f.ago(since))}
	if scheduled := podutil.FindCondition(&f.pod.Status, corev1.PodScheduled); scheduled != nil && scheduled.Message != "" {
		found.verdict = fmt.Sprintf("waiting %s: no node fits: %s", f.ago(since), scheduled.Message)
		found.reason, found.heldBy = cmp.Or(scheduled.Reason, found.reason), "scheduler"
		found.evidence = []Evidence{{"Pod/" + f.pod.Name, "status.conditions[PodScheduled]", scheduled.Message}}
		f.nodeHints(found)
	}
	if len(f.pod.Spec.SchedulingGates) > 0 {
		gate := f.pod.Spec.SchedulingGates[0].Name
		found.reason, found.heldBy = "SchedulingGated", "gate "+gate
		found.verdict = fmt.Sprintf("waiting %s: held back by scheduling gate %s, until it is removed", f.ago(since), gate)
	}
	return found
}

// isUnseen reports whether something of that name could not be read.
func (f *facts) isUnseen(what string) bool {
	return slices.ContainsFunc(f.unseen, func(text string) bool { return strings.HasPrefix(text, what) })
}

// nodeHints adds problems of the nodes themselves, and their remedies.
func (f *facts) nodeHints(found *finding) {
	var cordoned, pressed []string
	short := ""
	for i := range f.nodes {
		node := &f.nodes[i]
		if node.Spec.Unschedulable {
			cordoned = append(cordoned, node.Name)
			found.evidence = append(found.evidence, Evidence{"Node/" + node.Name, "spec.unschedulable", "true"})
		}
		if evidence := pressureConditions(node); len(evidence) > 0 {
			pressed = append(pressed, node.Name)
			found.evidence = append(found.evidence, evidence...)
			short = evidence[0].Text
		}
	}
	switch {
	case len(pressed) > 0 && len(pressed) == len(f.nodes) && strings.Contains(found.verdict, "taint"):
		found.reason, found.heldBy = "NodesUnderPressure", names("node", pressed)
		found.verdict = fmt.Sprintf("waiting %s: %s under pressure: %s (%s)", f.ago(found.since),
			allNodesText(names("node", pressed), len(pressed)), short, found.evidence[0].Text)
		found.next, found.remedy = "berth kubectl describe node "+pressed[0], "free the resource that the node is short of; its kubelet reports the pressure for five more minutes"
	case len(cordoned) > 0 && len(cordoned) == len(f.nodes):
		found.reason = "NodesCordoned"
		found.verdict = fmt.Sprintf("waiting %s: %s cordoned (%s)", f.ago(found.since), allNodesText(names("node", cordoned), len(cordoned)),
			found.evidence[0].Text)
		found.next = "berth kubectl uncordon " + strings.Join(cordoned, " ")
	case strings.Contains(found.verdict, "Insufficient") || strings.Contains(found.verdict, "Too many pods"):
		found.reason, found.next = "InsufficientResources", "berth kubectl describe nodes"
	}
}

// pressureConditions are the conditions of a node that keep the scheduler from it.
func pressureConditions(node *corev1.Node) (list []Evidence) {
	for _, condition := range node.Status.Conditions {
		if condition.Status == corev1.ConditionTrue && isPressure(condition.Type) {
			list = append(list, Evidence{"Node/" + node.Name, fmt.Sprintf("status.conditions[%s]", condition.Type), condition.Message})
		}
	}
	return list
}

func isPressure(condition corev1.NodeConditionType) bool {
	return condition == corev1.NodeMemoryPressure || condition == corev1.NodeDiskPressure || condition == corev1.NodePIDPressure
}

// keepsPodsAway reports whether a node with the condition gets a taint. Others, such as EtcdIsVoter, may say anything.
func keepsPodsAway(condition corev1.NodeConditionType) bool {
	return isPressure(condition) || condition == corev1.NodeNetworkUnavailable
}

func allNodesText(names string, count int) string {
	if count == 1 {
		return "its only " + names + " is"
	}
	return "all nodes are"
}

// claimProblem returns a finding about the first claim that is not bound, nil if all are.
func (f *facts) claimProblem() *finding {
	for _, c := range f.claims {
		if found := f.claimFinding(c); found != nil {
			return found
		}
	}
	return nil
}

func (f *facts) claimFinding(c claim) *finding {
	if c.object == nil {
		since := f.pod.CreationTimestamp.Time
		return &finding{state: Waiting, reason: "ClaimMissing", since: since, heldBy: "you",
			verdict:  fmt.Sprintf("waiting %s: claim %s (volume %s) does not exist", f.ago(since), c.name, c.volume),
			evidence: []Evidence{{KindClaim + "/" + c.name, "status.phase", "missing"}},
			next:     f.kubectl("get pvc", "")}
	}
	why := c.facts.unbound()
	if why == nil || why.reason == "WaitForFirstConsumer" && f.hasSchedulerReason() {
		return nil // the scheduler's own reason is more specific
	}
	return &finding{state: Waiting, reason: why.reason, since: why.since, heldBy: why.heldBy, next: why.next, evidence: why.evidence,
		remedy:  why.remedy,
		verdict: fmt.Sprintf("waiting %s: claim %s (volume %s) %s", f.ago(why.since), c.name, c.volume, why.text)}
}

// hasSchedulerReason reports whether the Pod's status has the scheduler's reason for not choosing a node.
func (f *facts) hasSchedulerReason() bool {
	scheduled := podutil.FindCondition(&f.pod.Status, corev1.PodScheduled)
	return scheduled != nil && scheduled.Status == corev1.ConditionFalse && scheduled.Message != ""
}

func podVolumes(f *facts) *finding {
	if f.started() {
		return nil
	}
	if found := f.claimProblem(); found != nil {
		return found
	}
	stage := f.openStage(timeline.StageVolume)
	event := f.lastEvent("FailedMount", "FailedAttachVolume", "FailedMapVolume")
	if stage == nil && (event == nil || f.record.Ref.UID != "") {
		return nil // the record is authoritative; an event may be old
	}
	found := &finding{state: Waiting, reason: "MountVolume", next: f.kubectl("describe pod", f.pod.Name),
		heldBy: "kubelet of node " + f.pod.Spec.NodeName}
	if stage != nil {
		f.describeMount(found, stage)
		return found
	}
	found.reason, found.since = event.Reason, eventTime(*event)
	found.verdict = fmt.Sprintf("waiting %s: %s", f.ago(f.pod.CreationTimestamp.Time), event.Message)
	found.evidence = []Evidence{{"Pod/" + f.pod.Name, "event", event.Reason + ": " + event.Message}}
	f.refineVolumeReason(found, "")
	return found
}

// describeMount describes the progress of a volume's set-up by the kubelet's record.
func (f *facts) describeMount(found *finding, stage *timeline.Stage) {
	found.since = f.firstAttempt(*stage)
	found.verdict = fmt.Sprintf("waiting %s: volume %s is being set up", f.ago(stage.Start), stage.Subject)
	failed := f.lastFailure(timeline.StageVolume, stage.Subject)
	if call := f.openDriverCall(failed == nil); call != nil {
		found.reason, found.heldBy, found.remedy = "DriverCall", call.Owner, driverRemedy(call)
		found.verdict = fmt.Sprintf("waiting %s: volume %s: %s", f.ago(found.since), stage.Subject, f.describeCall(call))
		found.evidence = []Evidence{{"Pod/" + f.pod.Name, "stage " + call.Name, call.Subject}}
		return
	}
	if failed == nil {
		return
	}
	found.reason, found.remedy = cmp.Or(failed.Reason, "FailedMount"), failed.Remedy
	found.verdict = fmt.Sprintf("waiting %s: volume %s cannot be set up (attempt %d): %s", f.ago(found.since), stage.Subject,
		stage.Attempt, failed.Error)
	found.evidence = []Evidence{{"Pod/" + f.pod.Name, "spec.volumes[" + stage.Subject + "]", failed.Error}}
	if call := f.openStage(timeline.StageDriver); call != nil && found.reason == "DriverCallFailed" {
		found.heldBy = call.Owner
		found.evidence = append(found.evidence, Evidence{"Pod/" + f.pod.Name, "stage " + call.Name + " " + call.Subject, call.Error})
	}
	f.refineVolumeReason(found, stage.Subject)
}

// refineVolumeReason makes the reason of a failed mount more specific by the volume's type. subject is the volume's name,
// empty if only an event is known, which may be about any volume of the Pod.
func (f *facts) refineVolumeReason(found *finding, subject string) {
	for i := range f.pod.Spec.Volumes {
		volume := &f.pod.Spec.Volumes[i]
		if subject != "" && volume.Name != subject {
			continue
		}
		if subject != "" && volume.HostPath != nil && volume.HostPath.Type != nil && *volume.HostPath.Type != "" {
			found.reason, found.heldBy = "HostPathType", "you"
			found.evidence = append(found.evidence, Evidence{"Pod/" + f.pod.Name, "spec.volumes[" + volume.Name + "].hostPath.type",
				string(*volume.HostPath.Type) + " " + volume.HostPath.Path})
			return
		}
		configMaps, secrets := references(&corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{*volume}}})
		if f.blameMissing(found, volume.Name, "configmap", configMaps) || f.blameMissing(found, volume.Name, "secret", secrets) {
			return
		}
	}
}

// blameMissing sets the reason to the first object of the kind that the volume needs and that does not exist. The
// kubelet's own error may differ: the API server refuses a node's request until it has authorized the node for the Pod.
func (f *facts) blameMissing(found *finding, volume, kind string, names map[string]bool) bool {
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !f.missing[kind+" "+name] {
			continue
		}
		reason := map[string]string{"configmap": "ConfigMapMissing", "secret": "SecretMissing"}[kind]
		if found.reason != reason {
			found.verdict = fmt.Sprintf("waiting %s: volume %s needs %s %s/%s, which does not exist", f.ago(found.since), volume, kind,
				f.pod.Namespace, name)
		}
		found.reason, found.heldBy = reason, "you"
		found.next = f.kubectl("create "+strings.Replace(kind, "secret", "secret generic", 1), name+" --from-file=…")
		return true
	}
	return false
}

// firstAttempt returns when the first attempt of the stage began.
func (f *facts) firstAttempt(of timeline.Stage) time.Time {
	for _, stage := range f.record.Stages {
		if stage.Name == of.Name && stage.Subject == of.Subject {
			return stage.Start
		}
	}
	return of.Start
}

// started reports whether a container of the Pod has run, so that volumes and sandbox are behind it.
func (f *facts) started() bool {
	for container := range podutil.Statuses(&f.pod.Status) {
		if container.State.Running != nil || container.State.Terminated != nil || container.LastTerminationState.Terminated != nil {
			return true
		}
	}
	return false
}

func podSandbox(f *facts) *finding {
	if f.started() {
		return nil
	}
	stage := f.openStage(timeline.StageSandbox)
	if stage == nil {
		return nil
	}
	found := &finding{state: Waiting, reason: "Sandbox", since: f.firstAttempt(*stage),
		verdict: fmt.Sprintf("waiting %s: its sandbox and network are being made", f.ago(f.firstAttempt(*stage)))}
	if failed := f.lastFailure(timeline.StageSandbox, stage.Subject); failed != nil {
		found.reason, found.remedy = "FailedCreatePodSandBox", failed.Remedy
		found.verdict = fmt.Sprintf("waiting %s: its sandbox cannot be made (attempt %d): %s", f.ago(found.since), stage.Attempt, failed.Error)
		found.evidence = []Evidence{{"Pod/" + f.pod.Name, "CRI RunPodSandbox", failed.Error}}
		found.next = f.kubectl("describe pod", f.pod.Name)
	}
	return found
}

func podContainers(f *facts) *finding {
	for _, container := range f.pod.Status.InitContainerStatuses {
		if found := f.containerFinding("init container", container); found != nil {
			return found
		}
		if container.State.Running != nil && (container.Started == nil || !*container.Started || !podutil.HasSidecar(&f.pod.Spec, container.Name)) {
			return &finding{state: Waiting, reason: "InitContainer", since: container.State.Running.StartedAt.Time,
				verdict: fmt.Sprintf("waiting %s: init container %s is running", f.ago(container.State.Running.StartedAt.Time), container.Name),
				next:    f.kubectl("logs", f.pod.Name+" -c "+container.Name)}
		}
	}
	for _, container := range f.pod.Status.ContainerStatuses {
		if found := f.containerFinding("container", container); found != nil {
			return found
		}
	}
	for _, container := range f.pod.Status.ContainerStatuses {
		if container.State.Running == nil || container.Ready {
			continue
		}
		since := container.State.Running.StartedAt.Time
		found := &finding{state: Waiting, reason: "NotReady", since: since, next: f.kubectl("describe pod", f.pod.Name),
			verdict: fmt.Sprintf("waiting %s: container %s runs, but is not ready yet", f.ago(since), container.Name)}
		if event := f.lastEvent("Unhealthy"); event != nil {
			found.reason = "ProbeFailing"
			found.verdict = fmt.Sprintf("waiting %s: container %s runs, but: %s", f.ago(since), container.Name, event.Message)
			found.evidence = []Evidence{{"Pod/" + f.pod.Name, "event", "Unhealthy: " + event.Message}}
		}
		return found
	}
	return nil
}

// containerFinding says why a container is waiting, nil if it only waits for other containers.
func (f *facts) containerFinding(what string, status corev1.ContainerStatus) *finding {
	if found := f.imageFinding(what, status); found != nil {
		return found
	}
	waiting := status.State.Waiting
	if waiting == nil || waiting.Reason == "ContainerCreating" || waiting.Reason == "PodInitializing" || waiting.Reason == "" {
		return nil
	}
	field := fmt.Sprintf("status.containerStatuses[%s].state.waiting", status.Name)
	found := &finding{state: Waiting, reason: waiting.Reason, since: f.pod.CreationTimestamp.Time,
		verdict:  fmt.Sprintf("%s %s: %s: %s", what, status.Name, waiting.Reason, waiting.Message),
		evidence: []Evidence{{"Pod/" + f.pod.Name, field, waiting.Reason + ": " + waiting.Message}},
		next:     f.kubectl("describe pod", f.pod.Name)}
	if waiting.Reason == "CreateContainerConfigError" {
		f.blameVariables(found, status.Name)
	}
	if ended := status.LastTerminationState.Terminated; ended != nil && waiting.Reason == "CrashLoopBackOff" {
		found.since, found.crashed = ended.FinishedAt.Time, status.Name
		how := fmt.Sprintf("exit code %d", ended.ExitCode)
		if ended.Reason != "" && ended.Reason != "Error" && ended.Reason != "Completed" {
			how += " (" + ended.Reason + ")"
		}
		found.verdict = fmt.Sprintf("%s %s crashes: it ended %s, last with %s %s ago; %s", what, status.Name,
			timesText(max(status.RestartCount, 1)), how, f.ago(ended.FinishedAt.Time), waiting.Message)
		found.next = f.kubectl("logs", fmt.Sprintf("%s -c %s --previous", f.pod.Name, status.Name))
		if wait, ok := backoff(waiting.Message); ok {
			found.nextChangeAt, found.heldBy = ended.FinishedAt.Add(wait), "the backoff after its crashes"
		}
	}
	return found
}

// blameVariables sets the reason to an object that the variables of the container need and that does not exist.
func (f *facts) blameVariables(found *finding, container string) {
	for _, spec := range slices.Concat(f.pod.Spec.InitContainers, f.pod.Spec.Containers) {
		if spec.Name != container {
			continue
		}
		configMaps, secrets := references(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{spec}}})
		for _, name := range slices.Sorted(maps.Keys(secrets)) {
			if f.missing["secret "+name] {
				found.reason, found.heldBy = "SecretMissing", "you"
				found.next = f.kubectl("create secret generic", name+" --from-literal=…")
			}
		}
		for _, name := range slices.Sorted(maps.Keys(configMaps)) {
			if f.missing["configmap "+name] {
				found.reason, found.heldBy = "ConfigMapMissing", "you"
				found.next = f.kubectl("create configmap", name+" --from-literal=…")
			}
		}
	}
}

func timesText(n int32) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// backoff reads the wait out of the kubelet's "back-off 20s restarting failed container=…".
func backoff(message string) (time.Duration, bool) {
	_, rest, found := strings.Cut(message, "back-off ")
	if !found {
		return 0, false
	}
	word, _, _ := strings.Cut(rest, " ")
	wait, err := time.ParseDuration(word)
	return wait, err == nil
}
