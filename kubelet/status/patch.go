package status

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/timeline"
)

// merge returns the API's status with the kubelet's part replaced by want. What others write stays.
func merge(api *corev1.Pod, want corev1.PodStatus) corev1.PodStatus {
	out := *api.Status.DeepCopy()
	if !isTerminal(api.Status.Phase) || isTerminal(want.Phase) {
		out.Phase = want.Phase
	}
	out.Reason, out.Message = want.Reason, want.Message
	out.HostIP, out.HostIPs = want.HostIP, want.HostIPs
	out.PodIP, out.PodIPs = want.PodIP, want.PodIPs
	out.StartTime, out.QOSClass = want.StartTime, want.QOSClass
	out.InitContainerStatuses = want.InitContainerStatuses
	out.ContainerStatuses = want.ContainerStatuses
	out.EphemeralContainerStatuses = want.EphemeralContainerStatuses
	out.Resources, out.AllocatedResources = want.Resources, want.AllocatedResources
	out.ObservedGeneration = max(out.ObservedGeneration, want.ObservedGeneration)
	out.Conditions = mergeConditions(api.Status.Conditions, want.Conditions)
	return out
}

func mergeConditions(api, want []corev1.PodCondition) []corev1.PodCondition {
	var out []corev1.PodCondition
	for _, c := range want {
		if ownedConditions[c.Type] || c.Type == corev1.DisruptionTarget {
			out = append(out, c)
		}
	}
	for _, c := range api {
		if !ownedConditions[c.Type] && condition(out, c.Type) == nil {
			out = append(out, c)
		}
	}
	return out
}

// patch writes the status that was requested at a time, with the Pod's UID as a precondition, and returns the Pod as it
// is then.
func (w *Writer) patch(ctx context.Context, api *corev1.Pod, status corev1.PodStatus, requestedAt time.Time) (*corev1.Pod, error) {
	body, err := difference(api, status)
	if err != nil {
		return nil, fmt.Errorf("make status patch of pod %s/%s: %w", api.Namespace, api.Name, err)
	}
	span := w.deps.Timeline.BeginQueued(timeline.PodRef(api), owner, timeline.StageStatus, summary(&status), requestedAt)
	pod, err := w.deps.Client.CoreV1().Pods(api.Namespace).Patch(ctx, api.Name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{}, "status")
	err = withReason(err)
	span.End(err)
	if err != nil {
		return nil, fmt.Errorf("write status of pod %s/%s: %w", api.Namespace, api.Name, err)
	}
	return pod, nil
}

// withReason adds to the error of a write, if the API server has refused it, what that means and what to do.
func withReason(err error) error {
	switch {
	case isInvalid(err):
		return timeline.WithReason(err, timeline.ReasonStatusRefused, "the status is written again when it changes, and after 5 minutes at the latest: "+
			"change what the message names in the pod, or delete the pod; a status that Kubernetes itself refuses is a defect to report")
	case apierrors.IsForbidden(err):
		return timeline.WithReason(err, timeline.ReasonStatusRefused,
			"check the admission webhooks and policies for pods/status, and the rights of the node's user: berth kubectl get validatingwebhookconfigurations,validatingadmissionpolicies")
	}
	return err
}

// isInvalid reports whether the API server has refused a status for what it says.
func isInvalid(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// summary describes a status for the timeline.
func summary(status *corev1.PodStatus) string {
	if podutil.IsReady(status) {
		return string(status.Phase) + ", Ready"
	}
	return string(status.Phase)
}

// difference returns the patch from the API's status to the given one.
func difference(api *corev1.Pod, status corev1.PodStatus) ([]byte, error) {
	// Only what is patched is compared; the UID is on one side only, so that it is in the patch.
	old, err := json.Marshal(&corev1.Pod{Status: api.Status})
	if err != nil {
		return nil, err
	}
	next, err := json.Marshal(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: api.UID}, Status: status})
	if err != nil {
		return nil, err
	}
	return strategicpatch.CreateTwoWayMergePatch(old, next, corev1.Pod{})
}

// remove deletes the Pod's object for good.
func (w *Writer) remove(ctx context.Context, api *corev1.Pod) error {
	grace := int64(0)
	err := w.deps.Client.CoreV1().Pods(api.Namespace).Delete(ctx, api.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &grace,
		Preconditions:      &metav1.Preconditions{UID: &api.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s/%s: %w", api.Namespace, api.Name, err)
	}
	w.deps.Timeline.Mark(timeline.PodRef(api), owner, timeline.StageRemoved, "", nil)
	return nil
}

// isUIDConflict reports whether a conflict means that a new Pod has the name, so that a retry does not help.
func isUIDConflict(err error) bool {
	return strings.Contains(err.Error(), "UID")
}
