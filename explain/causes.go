package explain

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

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
	if f.nodes == 0 {
		return &finding{state: Waiting, reason: "NoNodes", since: since,
			verdict: fmt.Sprintf("waiting %s: the cluster has no node", f.ago(since)), next: "berth kubectl get nodes"}
	}
	found := &finding{state: Waiting, reason: "Unscheduled", since: since, next: f.kubectl("describe pod", f.pod.Name),
		verdict: fmt.Sprintf("waiting %s: the scheduler has not looked at it yet", f.ago(since))}
	if scheduled := condition(f.pod, corev1.PodScheduled); scheduled != nil && scheduled.Message != "" {
		found.verdict = fmt.Sprintf("waiting %s: no node fits: %s", f.ago(since), scheduled.Message)
		found.reason = cmp.Or(scheduled.Reason, found.reason)
		found.evidence = []Evidence{{"Pod/" + f.pod.Name, "status.conditions[PodScheduled]", scheduled.Message}}
	}
	return found
}

// claimProblem is what is wrong with the first claim that is not bound.
func (f *facts) claimProblem() *finding {
	for _, c := range f.claims {
		if found := f.oneClaim(c); found != nil {
			return found
		}
	}
	return nil
}

func (f *facts) oneClaim(c claim) *finding {
	since := f.pod.CreationTimestamp.Time
	waiting := func(reason, text string) *finding {
		return &finding{state: Waiting, reason: reason, since: since,
			verdict:  fmt.Sprintf("waiting %s: claim %s (volume %s) %s", f.ago(since), c.name, c.volume, text),
			evidence: []Evidence{{"PersistentVolumeClaim/" + c.name, "status.phase", "missing"}},
			next:     f.kubectl("describe pvc", c.name)}
	}
	if c.object == nil {
		found := waiting("ClaimMissing", "does not exist")
		found.next = f.kubectl("get pvc", "")
		return found
	}
	if c.object.Status.Phase == corev1.ClaimBound {
		return nil
	}
	since = c.object.CreationTimestamp.Time
	var found *finding
	switch {
	case c.object.Status.Phase == corev1.ClaimLost:
		found = waiting("ClaimLost", "has lost its volume "+c.object.Spec.VolumeName)
	case c.className == "" && c.object.Spec.VolumeName == "":
		found = waiting("ClaimWithoutClass", "names no storage class and there is no default class")
		found.next = "berth kubectl get storageclass"
	case c.className != "" && c.class == nil:
		found = waiting("ClassMissing", fmt.Sprintf("asks for storage class %q, which does not exist", c.className))
		found.next = "berth kubectl get storageclass"
	default:
		found = waiting("ClaimPending", f.pendingText(c))
	}
	found.evidence[0].Text = string(c.object.Status.Phase)
	return found
}

// pendingText says what a claim of an existing class waits for.
func (f *facts) pendingText(c claim) string {
	for _, record := range f.records {
		if record.Ref.UID != c.object.UID {
			continue
		}
		for i := len(record.Stages) - 1; i >= 0; i-- {
			stage := record.Stages[i]
			if stage.Error != "" {
				return fmt.Sprintf("cannot be provisioned (attempt %d): %s", stage.Attempt, stage.Error)
			}
			if !stage.Done() {
				return fmt.Sprintf("is being provisioned since %s", f.ago(stage.Start))
			}
		}
	}
	if c.class == nil {
		return "is not bound to a volume yet"
	}
	if c.class.VolumeBindingMode != nil && *c.class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer &&
		c.object.Annotations["volume.kubernetes.io/selected-node"] == "" {
		return "waits until the scheduler has chosen a node"
	}
	return fmt.Sprintf("waits for provisioner %s of class %s", c.class.Provisioner, c.class.Name)
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
		return nil // with a record, the record is the truth and an event may be old
	}
	found := &finding{state: Waiting, reason: "MountVolume", next: f.kubectl("describe pod", f.pod.Name)}
	if stage != nil {
		found.since = stage.Start
		found.verdict = fmt.Sprintf("waiting %s: volume %s is being set up", f.ago(stage.Start), stage.Subject)
		if text := f.lastError(timeline.StageVolume, stage.Subject); text != "" {
			found.reason = "FailedMount"
			found.verdict = fmt.Sprintf("waiting %s: volume %s cannot be set up (attempt %d): %s", f.ago(f.firstTry(*stage)), stage.Subject,
				stage.Attempt, text)
			found.evidence = []Evidence{{"Pod/" + f.pod.Name, "spec.volumes[" + stage.Subject + "]", text}}
		}
		return found
	}
	found.reason, found.since = event.Reason, eventTime(*event)
	found.verdict = fmt.Sprintf("waiting %s: %s", f.ago(f.pod.CreationTimestamp.Time), event.Message)
	found.evidence = []Evidence{{"Pod/" + f.pod.Name, "event", event.Reason + ": " + event.Message}}
	return found
}

// firstTry is when the first attempt at the stage began.
func (f *facts) firstTry(of timeline.Stage) time.Time {
	for _, stage := range f.record.Stages {
		if stage.Name == of.Name && stage.Subject == of.Subject {
			return stage.Start
		}
	}
	return of.Start
}

// started reports whether a container of the Pod has run, so that volumes and sandbox are behind it.
func (f *facts) started() bool {
	for _, list := range [][]corev1.ContainerStatus{f.pod.Status.InitContainerStatuses, f.pod.Status.ContainerStatuses} {
		for _, container := range list {
			if container.State.Running != nil || container.State.Terminated != nil || container.LastTerminationState.Terminated != nil {
				return true
			}
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
	found := &finding{state: Waiting, reason: "Sandbox", since: f.firstTry(*stage),
		verdict: fmt.Sprintf("waiting %s: its sandbox and network are being made", f.ago(f.firstTry(*stage)))}
	if text := f.lastError(timeline.StageSandbox, stage.Subject); text != "" {
		found.reason = "FailedCreatePodSandBox"
		found.verdict = fmt.Sprintf("waiting %s: its sandbox cannot be made (attempt %d): %s", f.ago(found.since), stage.Attempt, text)
		found.evidence = []Evidence{{"Pod/" + f.pod.Name, "CRI RunPodSandbox", text}}
		found.next = f.kubectl("describe pod", f.pod.Name)
	}
	return found
}

func podContainers(f *facts) *finding {
	for _, container := range f.pod.Status.InitContainerStatuses {
		if found := f.oneContainer("init container", container); found != nil {
			return found
		}
		if container.State.Running != nil && (container.Started == nil || !*container.Started || !sidecar(f.pod, container.Name)) {
			return &finding{state: Waiting, reason: "InitContainer", since: container.State.Running.StartedAt.Time,
				verdict: fmt.Sprintf("waiting %s: init container %s is running", f.ago(container.State.Running.StartedAt.Time), container.Name),
				next:    f.kubectl("logs", f.pod.Name+" -c "+container.Name)}
		}
	}
	for _, container := range f.pod.Status.ContainerStatuses {
		if found := f.oneContainer("container", container); found != nil {
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

func sidecar(pod *corev1.Pod, name string) bool {
	for _, container := range pod.Spec.InitContainers {
		if container.Name == name {
			return container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways
		}
	}
	return false
}

// oneContainer is why a container is waiting, unless it merely has its turn later.
func (f *facts) oneContainer(what string, status corev1.ContainerStatus) *finding {
	waiting := status.State.Waiting
	if waiting == nil || waiting.Reason == "ContainerCreating" || waiting.Reason == "PodInitializing" || waiting.Reason == "" {
		return nil
	}
	field := fmt.Sprintf("status.containerStatuses[%s].state.waiting", status.Name)
	found := &finding{state: Waiting, reason: waiting.Reason, since: f.pod.CreationTimestamp.Time,
		verdict:  fmt.Sprintf("%s %s: %s: %s", what, status.Name, waiting.Reason, waiting.Message),
		evidence: []Evidence{{"Pod/" + f.pod.Name, field, waiting.Reason + ": " + waiting.Message}},
		next:     f.kubectl("describe pod", f.pod.Name)}
	if ended := status.LastTerminationState.Terminated; ended != nil && waiting.Reason == "CrashLoopBackOff" {
		found.since = ended.FinishedAt.Time
		found.verdict = fmt.Sprintf("%s %s crashes: it ended %d times, last with exit code %d %s ago; %s", what, status.Name,
			max(status.RestartCount, 1), ended.ExitCode, f.ago(ended.FinishedAt.Time), waiting.Message)
		found.next = f.kubectl("logs", fmt.Sprintf("%s -c %s --previous", f.pod.Name, status.Name))
	}
	return found
}
