package replicaset

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/internal/podutil"
)

// status is the status that the ReplicaSet should have. Pods that were just created count, those whose deletion was
// just asked for do not.
func (r *reconciliation) status(manageErr error, now time.Time) appsv1.ReplicaSetStatus {
	status := appsv1.ReplicaSetStatus{
		Replicas:             int32(len(r.active) + r.unseen),
		FullyLabeledReplicas: int32(r.unseen), // they were made from the template
		ObservedGeneration:   r.rs.Generation,
		Conditions:           slices.Clone(r.rs.Status.Conditions),
	}
	template := labels.Set(r.rs.Spec.Template.Labels).AsSelectorPreValidated()
	minReady := time.Duration(r.rs.Spec.MinReadySeconds) * time.Second
	for _, pod := range r.active {
		if template.Matches(labels.Set(pod.Labels)) {
			status.FullyLabeledReplicas++
		}
		if podutil.IsReady(&pod.Status) {
			status.ReadyReplicas++
		}
		if isAvailable(pod, minReady, now) {
			status.AvailableReplicas++
		}
	}
	if !r.terminatingUnsupported.Load() {
		terminating := int32(len(r.terminating))
		status.TerminatingReplicas = &terminating
	}
	r.setFailure(&status, manageErr, now)
	return status
}

// setFailure sets or removes the condition ReplicaFailure. While the failure goes on the condition stays as it began,
// so that a message with a changing detail does not lead to a write at each retry.
func (r *reconciliation) setFailure(status *appsv1.ReplicaSetStatus, failure error, now time.Time) {
	at := slices.IndexFunc(status.Conditions, func(c appsv1.ReplicaSetCondition) bool {
		return c.Type == appsv1.ReplicaSetReplicaFailure
	})
	switch {
	case failure == nil && at >= 0:
		status.Conditions = slices.Delete(status.Conditions, at, at+1)
	case failure != nil && at < 0:
		reason := reasonFailedCreate
		if len(r.active)+r.unseen > r.desired {
			reason = reasonFailedDelete
		}
		status.Conditions = append(status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
			Reason: reason, Message: failure.Error(), LastTransitionTime: metav1.NewTime(now),
		})
	}
	if len(status.Conditions) == 0 {
		status.Conditions = nil
	}
}

// writeStatus writes the status if it differs. After a conflict it retries once with the current object; the observed
// generation stays that of the object which was reconciled.
func (r *reconciliation) writeStatus(ctx context.Context, status appsv1.ReplicaSetStatus) error {
	if apiequality.Semantic.DeepEqual(r.rs.Status, status) {
		return nil
	}
	base := r.rs
	for first := true; ; first = false {
		update := base.DeepCopy()
		update.Status = status
		written, err := r.replicaSets.UpdateStatus(ctx, update, metav1.UpdateOptions{})
		switch {
		case err == nil:
			// A server before 1.35 drops the field; without this every run would write the status again.
			if status.TerminatingReplicas != nil && written.Status.TerminatingReplicas == nil {
				r.terminatingUnsupported.Store(true)
			}
			return nil
		case apierrors.IsNotFound(err):
			return nil // deleted; the event is on its way
		case !first || !apierrors.IsConflict(err):
			return fmt.Errorf("write status of replicaset %s/%s: %w", r.rs.Namespace, r.rs.Name, err)
		}
		base, err = r.deps.Client.AppsV1().ReplicaSets(r.rs.Namespace).Get(ctx, r.rs.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || (err == nil && base.UID != r.rs.UID) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read replicaset %s/%s to write its status: %w", r.rs.Namespace, r.rs.Name, err)
		}
		if base.Status.ObservedGeneration > status.ObservedGeneration {
			status.ObservedGeneration = base.Status.ObservedGeneration
		}
	}
}
