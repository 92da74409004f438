package status

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
)

// Reasons of conditions.
const (
	reasonPodCompleted   = "PodCompleted"
	reasonPodFailed      = "PodFailed"
	reasonNotInitialized = "ContainersNotInitialized"
	reasonNotReady       = "ContainersNotReady"
	reasonGates          = "ReadinessGatesNotReady"
	reasonRestartingAll  = "RestartAllContainersStarted"
)

// ownedConditions are the conditions that only the kubelet writes. DisruptionTarget is shared with others, and kept.
var ownedConditions = map[corev1.PodConditionType]bool{
	corev1.PodReadyToStartContainers: true,
	corev1.PodInitialized:            true,
	corev1.PodReady:                  true,
	corev1.ContainersReady:           true,
	corev1.PodScheduled:              true,
	corev1.PodResizePending:          true,
	corev1.PodResizeInProgress:       true,
	corev1.AllContainersRestarting:   true,
}

// setConditions sets the kubelet's conditions and keeps those of others.
func setConditions(in *Input, out *corev1.PodStatus) {
	ready := containersReadyCondition(in, out)
	ours := []corev1.PodCondition{
		newCondition(corev1.PodReadyToStartContainers, in.Prepared && !isTerminal(out.Phase)),
		initializedCondition(in, out),
		readyCondition(in, ready),
		ready,
		newCondition(corev1.PodScheduled, true),
	}
	if f := in.Failure; f != nil && f.Disruption && in.Ended && isTerminal(out.Phase) {
		c := newCondition(corev1.DisruptionTarget, true)
		c.Reason, c.Message = corev1.PodReasonTerminationByKubelet, f.Message
		ours = append(ours, c)
	}
	if in.Failure != nil && in.Failure.Final != nil && in.Ended {
		for _, c := range in.Failure.Final.Conditions {
			if !ownedConditions[c.Type] {
				ours = append(ours, c)
			}
		}
	}
	ours = append(append(ours, resizeConditions(in, out)...), restartingAllConditions(in, out)...)
	for _, c := range ours {
		c.ObservedGeneration = out.ObservedGeneration
		c.LastTransitionTime = metav1.NewTime(in.Now.Truncate(1e9))
		if old := condition(in.Old.Conditions, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		out.Conditions = append(out.Conditions, c)
	}
	for _, c := range in.Pod.Status.Conditions {
		if !ownedConditions[c.Type] && condition(out.Conditions, c.Type) == nil {
			out.Conditions = append(out.Conditions, c)
		}
	}
}

// resizeConditions returns the conditions of a change of resources while it lasts.
func resizeConditions(in *Input, out *corev1.PodStatus) []corev1.PodCondition {
	if in.Resize == nil || isTerminal(out.Phase) {
		return nil
	}
	var list []corev1.PodCondition
	if why := in.Resize.Pending; why != nil {
		c := newCondition(corev1.PodResizePending, true)
		c.Reason, c.Message = why.Reason, why.Message
		list = append(list, c)
	}
	if in.Resize.InProgress {
		c := newCondition(corev1.PodResizeInProgress, true)
		if in.Resize.Error != "" {
			c.Reason, c.Message = corev1.PodReasonError, in.Resize.Error
		}
		list = append(list, c)
	}
	return list
}

// restartingAllConditions returns the condition of a Pod of which one container's exit can restart all of them.
func restartingAllConditions(in *Input, out *corev1.PodStatus) []corev1.PodCondition {
	possible, asked := kuberuntime.RestartingAll(in.Pod, in.Runtime)
	if !possible {
		return nil
	}
	c := newCondition(corev1.AllContainersRestarting, asked && !isTerminal(out.Phase))
	switch {
	case out.Phase == corev1.PodSucceeded:
		c.Reason = reasonPodCompleted
	case out.Phase == corev1.PodFailed:
		c.Reason = reasonPodFailed
	case asked:
		c.Reason, c.Message = reasonRestartingAll, "container exited with restart policy rule"
	}
	return []corev1.PodCondition{c}
}

// initializedCondition returns the condition Initialized.
func initializedCondition(in *Input, out *corev1.PodStatus) corev1.PodCondition {
	c := newCondition(corev1.PodInitialized, true)
	if out.Phase == corev1.PodSucceeded {
		c.Reason = reasonPodCompleted
		return c
	}
	if anyStarted(out.ContainerStatuses) {
		return c
	}
	var open []string
	for i := range in.Pod.Spec.InitContainers {
		spec := &in.Pod.Spec.InitContainers[i]
		s := podutil.FindStatus(out.InitContainerStatuses, spec.Name)
		done := s != nil && (s.Ready || podutil.IsSidecar(spec, podutil.Init) && s.Started != nil && *s.Started)
		if !done {
			open = append(open, spec.Name)
		}
	}
	if old := condition(in.Old.Conditions, c.Type); old != nil && old.Status == corev1.ConditionTrue {
		return c // a Pod is initialized once, even if its init containers run again
	}
	if len(open) > 0 {
		c.Status, c.Reason = corev1.ConditionFalse, reasonNotInitialized
		c.Message = fmt.Sprintf("containers with incomplete status: [%s]", strings.Join(open, " "))
	}
	return c
}

// containersReadyCondition returns the condition ContainersReady.
func containersReadyCondition(in *Input, out *corev1.PodStatus) corev1.PodCondition {
	c := newCondition(corev1.ContainersReady, true)
	switch out.Phase {
	case corev1.PodSucceeded:
		c.Status, c.Reason = corev1.ConditionFalse, reasonPodCompleted
		return c
	case corev1.PodFailed:
		c.Status, c.Reason = corev1.ConditionFalse, reasonPodFailed
		return c
	}
	var unready []string
	check := func(name string, statuses []corev1.ContainerStatus) {
		if s := podutil.FindStatus(statuses, name); s == nil || !s.Ready {
			unready = append(unready, name)
		}
	}
	for i := range in.Pod.Spec.InitContainers {
		if spec := &in.Pod.Spec.InitContainers[i]; podutil.IsSidecar(spec, podutil.Init) {
			check(spec.Name, out.InitContainerStatuses)
		}
	}
	for i := range in.Pod.Spec.Containers {
		check(in.Pod.Spec.Containers[i].Name, out.ContainerStatuses)
	}
	if len(unready) > 0 {
		c.Status, c.Reason = corev1.ConditionFalse, reasonNotReady
		c.Message = fmt.Sprintf("containers with unready status: [%s]", strings.Join(unready, " "))
	}
	return c
}

// readyCondition returns the condition Ready: all containers and all readiness gates.
func readyCondition(in *Input, containers corev1.PodCondition) corev1.PodCondition {
	if containers.Status != corev1.ConditionTrue {
		containers.Type = corev1.PodReady
		return containers
	}
	c := newCondition(corev1.PodReady, true)
	var open []string
	for _, gate := range in.Pod.Spec.ReadinessGates {
		got := condition(in.Pod.Status.Conditions, gate.ConditionType)
		switch {
		case got == nil:
			open = append(open, fmt.Sprintf("corresponding condition of pod readiness gate %q does not exist.",
				gate.ConditionType))
		case got.Status != corev1.ConditionTrue:
			open = append(open, fmt.Sprintf("the status of pod readiness gate %q is not \"True\", but %v",
				gate.ConditionType, got.Status))
		}
	}
	if len(open) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, reasonGates, strings.Join(open, ", ")
	}
	return c
}

func condition(list []corev1.PodCondition, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range list {
		if list[i].Type == kind {
			return &list[i]
		}
	}
	return nil
}

func newCondition(kind corev1.PodConditionType, ok bool) corev1.PodCondition {
	c := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse}
	if ok {
		c.Status = corev1.ConditionTrue
	}
	return c
}
