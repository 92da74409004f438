package volumemanager

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/berth-dev/berth/internal/expansion"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
)

// grow has the volume grow if its PersistentVolume is larger than its claim knows, and tells the claim.
func (m *Manager) grow(ctx context.Context, pod *corev1.Pod, mounted *mountedVolume) error {
	if !canGrow(mounted) || !isNodesTurn(mounted.Spec) {
		return nil
	}
	claim := mounted.Spec.PVC
	if expansion.Stage(claim) == corev1.PersistentVolumeClaimNodeResizePending {
		const stage = corev1.PersistentVolumeClaimNodeResizeInProgress
		if err := m.patchClaim(ctx, claim, func(now *corev1.PersistentVolumeClaim) map[string]any {
			if expansion.Stage(now) != corev1.PersistentVolumeClaimNodeResizePending {
				return nil
			}
			return map[string]any{"allocatedResourceStatuses": map[string]any{"storage": stage}}
		}); err != nil {
			return fmt.Errorf("tell claim %s/%s that its volume is about to grow: %w", claim.Namespace, claim.Name, err)
		}
	}
	size := mounted.Spec.PV.Spec.Capacity[corev1.ResourceStorage]
	span := m.deps.Timeline.Begin(timeline.RefOf("PersistentVolumeClaim", claim), "kubelet", timeline.StageGrowing, size.String())
	done, err := m.growOnDevice(ctx, mounted)
	span.End(err)
	if err != nil {
		if ctx.Err() == nil {
			m.tellFailure(ctx, claim, err)
		}
		return err
	}
	if !done {
		return nil
	}
	if err := m.tellClaim(ctx, mounted.Spec); err != nil {
		return err
	}
	message := fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", mounted.Spec.PV.Name,
		m.config.NodeName)
	m.deps.Recorder.Event(pod, corev1.EventTypeNormal, resizeDone, message)
	m.deps.Recorder.Event(mounted.Spec.PVC, corev1.EventTypeNormal, resizeDone, message)
	return nil
}

// isNodesTurn reports whether a volume has grown, and its file system is to follow.
func isNodesTurn(spec volume.Spec) bool {
	size := spec.PV.Spec.Capacity[corev1.ResourceStorage]
	known, ok := spec.PVC.Status.Capacity[corev1.ResourceStorage]
	if !ok || size.Cmp(known) <= 0 {
		return false
	}
	switch expansion.Stage(spec.PVC) {
	case corev1.PersistentVolumeClaimControllerResizeInProgress:
		return false // whose resizer is about to say whether anything is left to do here
	case corev1.PersistentVolumeClaimNodeResizeInfeasible:
		return false // until the resizer says that it has changed
	}
	return true
}

func (m *Manager) growOnDevice(ctx context.Context, mounted *mountedVolume) (done bool, err error) {
	err = m.onDevice(ctx, mounted, opExpand, func(ctx context.Context) (err error) {
		expand := func(ctx context.Context) (err error) {
			done, err = mounted.plugin.(volume.Expander).Expand(ctx, volume.ExpandRequest{
				Spec: mounted.Spec, Dir: mounted.request.Dir, Path: mounted.Path,
			})
			return err
		}
		return m.meter.run(ctx, mounted.Spec.FullName(mounted.plugin.Name()), measuredGrowth, mounted.Block, expand)
	})
	return done, err
}

// tellClaim writes into the claim's status that its volume has grown and that nothing is left to do here. A resizer that
// works on a still larger size keeps its own words.
func (m *Manager) tellClaim(ctx context.Context, spec volume.Spec) error {
	size := spec.PV.Spec.Capacity[corev1.ResourceStorage]
	err := m.patchClaim(ctx, spec.PVC, func(claim *corev1.PersistentVolumeClaim) map[string]any {
		if known := claim.Status.Capacity[corev1.ResourceStorage]; known.Cmp(size) >= 0 {
			return nil // another Pod was faster
		}
		status := map[string]any{"capacity": map[string]any{"storage": size.String()}}
		gone := []corev1.PersistentVolumeClaimConditionType{
			corev1.PersistentVolumeClaimFileSystemResizePending, corev1.PersistentVolumeClaimNodeResizeError}
		if !isResizers(claim) {
			gone = append(gone, corev1.PersistentVolumeClaimResizing)
			status["allocatedResourceStatuses"] = map[string]any{"storage": nil}
		}
		status["conditions"] = expansion.Without(claim, gone...)
		return status
	})
	if err != nil {
		return fmt.Errorf("tell claim %s/%s that its volume has grown: %w", spec.PVC.Namespace, spec.PVC.Name, err)
	}
	return nil
}

// isResizers reports whether the claim's status is for the resizer to change.
func isResizers(claim *corev1.PersistentVolumeClaim) bool {
	return strings.HasPrefix(string(expansion.Stage(claim)), "Controller")
}

// tellFailure writes into the claim's status what became of an attempt that has failed for good.
func (m *Manager) tellFailure(ctx context.Context, claim *corev1.PersistentVolumeClaim, failed error) {
	if volume.IsUncertain(failed) {
		return
	}
	err := m.patchClaim(ctx, claim, func(claim *corev1.PersistentVolumeClaim) map[string]any {
		since := metav1.NewTime(m.clock.Now())
		for _, c := range claim.Status.Conditions {
			if c.Type == corev1.PersistentVolumeClaimNodeResizeError {
				if c.Message == failed.Error() && !volume.IsInfeasible(failed) {
					return nil // it says so already
				}
				since = c.LastTransitionTime
			}
		}
		status := map[string]any{"conditions": append(expansion.Without(claim, corev1.PersistentVolumeClaimNodeResizeError),
			corev1.PersistentVolumeClaimCondition{
				Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue,
				LastTransitionTime: since, Message: failed.Error()})}
		if volume.IsInfeasible(failed) && !isResizers(claim) {
			status["allocatedResourceStatuses"] = map[string]any{"storage": corev1.PersistentVolumeClaimNodeResizeInfeasible}
		}
		return status
	})
	if err != nil && ctx.Err() == nil {
		m.log.Info("cannot tell a claim why its volume does not grow", "claim", claim.Name, "namespace", claim.Namespace,
			"error", err)
	}
}

// patchClaim changes the status of a claim as change says, given the claim as it is by now. Nil is no change.
func (m *Manager) patchClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim,
	change func(*corev1.PersistentVolumeClaim) map[string]any,
) error {
	claims := m.deps.Client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status := change(now)
		if status == nil {
			return nil
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": claim.UID, "resourceVersion": now.ResourceVersion}, "status": status})
		if err != nil {
			return err
		}
		_, err = claims.Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
}
