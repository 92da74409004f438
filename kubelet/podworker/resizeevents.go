package podworker

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/status"
)

// resizeSummary is the part of the message of an event about a resize that programs read. The names are upstream's.
type resizeSummary struct {
	InitContainers []resizedContainer `json:"initContainers,omitempty"`
	Containers     []resizedContainer `json:"containers,omitempty"`
	Generation     int64              `json:"generation"`
	Error          string             `json:"error,omitempty"`
}

type resizedContainer struct {
	Name      string                      `json:"name"`
	Resources corev1.ResourceRequirements `json:"resources"`
}

// resizeMessage returns the message of an event about a resize to the resources of the Pod's spec: what happened, and the summary.
func resizeMessage(what string, pod *corev1.Pod, problem string) string {
	summary := resizeSummary{Generation: pod.Generation, Error: problem}
	for c, kind := range podutil.Containers(&pod.Spec) {
		switch one := (resizedContainer{c.Name, c.Resources}); kind {
		case podutil.Init:
			summary.InitContainers = append(summary.InitContainers, one)
		case podutil.Regular:
			summary.Containers = append(summary.Containers, one)
		}
	}
	text, err := json.Marshal(summary)
	if err != nil {
		return what // quantities and names can always be encoded
	}
	return what + ": " + string(text)
}

// reportPendingResize records why the desired resources are not granted. There is one event for each version of the spec and each reason,
// however the amounts in the message change with other Pods.
func (w *worker) reportPendingResize(why *status.Failure) {
	r := &w.resize
	if r.pending == nil || r.pending.Reason != why.Reason || r.generation != r.desired.Generation {
		w.eventWarning("", "Resize"+why.Reason, "%s", resizeMessage("Pod resize "+why.Reason, r.desired, why.Message))
		if why.Reason == corev1.PodReasonInfeasible {
			w.m.deps.Metrics.ResizeInfeasible(why.Detail)
		}
	}
	r.pending, r.generation = why, r.desired.Generation
}
