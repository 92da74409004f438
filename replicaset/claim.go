package replicaset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// claimPods releases the ReplicaSet's Pods that its selector no longer matches, adopts those without a controller that it
// matches, and returns the Pods that the ReplicaSet controls. If the ReplicaSet is being deleted, it does neither, because
// the garbage collector handles its Pods.
func (r *reconciliation) claimPods(ctx context.Context, pods []*corev1.Pod) ([]*corev1.Pod, error) {
	claimed := make([]*corev1.Pod, 0, len(pods))
	var failures []error
	confirmed := false
	for _, pod := range pods {
		matches := r.selector.Matches(labels.Set(pod.Labels))
		owned := metav1.IsControlledBy(pod, r.rs)
		switch {
		case owned && matches:
			claimed = append(claimed, pod)
		case r.rs.DeletionTimestamp != nil:
		case owned:
			if err := r.release(ctx, pod); err != nil {
				failures = append(failures, err)
			}
		default:
			if !confirmed {
				if err := r.confirmAlive(ctx); err != nil {
					return nil, err
				}
				confirmed = true
			}
			adopted, err := r.adopt(ctx, pod)
			if err != nil {
				failures = append(failures, err)
			}
			if adopted != nil {
				claimed = append(claimed, adopted)
			}
		}
	}
	return claimed, errors.Join(failures...)
}

// confirmAlive reads from the API whether the ReplicaSet still exists and is not being deleted. The cache does not suffice
// for an adoption: the garbage collector may just have orphaned these Pods.
func (r *reconciliation) confirmAlive(ctx context.Context) error {
	fresh, err := r.deps.Client.AppsV1().ReplicaSets(r.rs.Namespace).Get(ctx, r.rs.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("check replicaset %s/%s before adopting pods: %w", r.rs.Namespace, r.rs.Name, err)
	}
	if fresh.UID != r.rs.UID || fresh.DeletionTimestamp != nil {
		return fmt.Errorf("adopt pods for replicaset %s/%s with uid %s: it is gone or being deleted",
			r.rs.Namespace, r.rs.Name, r.rs.UID)
	}
	return nil
}

// adopt makes the ReplicaSet the Pod's controller. It returns nil without an error if the Pod does not exist or is
// terminating.
func (r *reconciliation) adopt(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	patched, err := r.patchOwner(ctx, pod, metav1.NewControllerRef(r.rs, kind))
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("adopt pod %s/%s for replicaset %q: %w", pod.Namespace, pod.Name, r.rs.Name, err)
	}
	if patched.DeletionTimestamp != nil {
		return nil, nil
	}
	return patched, nil
}

// release removes the ReplicaSet from the Pod's owners. It succeeds if the Pod does not exist or has another owner.
func (r *reconciliation) release(ctx context.Context, pod *corev1.Pod) error {
	_, err := r.patchOwner(ctx, pod, map[string]any{"$patch": "delete", "uid": r.rs.UID})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) {
		return fmt.Errorf("release pod %s/%s from replicaset %q: %w", pod.Namespace, pod.Name, r.rs.Name, err)
	}
	return nil
}

// patchOwner changes one entry of the Pod's owner references. The UID in the patch makes it fail on another Pod of
// the same name.
func (r *reconciliation) patchOwner(ctx context.Context, pod *corev1.Pod, reference any) (*corev1.Pod, error) {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "ownerReferences": []any{reference}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode owner reference: %w", err)
	}
	return r.deps.Client.CoreV1().Pods(pod.Namespace).
		Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
}
