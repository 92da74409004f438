package volumemanager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/berth-dev/berth/internal/expansion"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
)

// expand has the volume grow if its PersistentVolume is larger than its claim knows, and tells the claim; also if another node
// has told the claim, where each has a part in it.
func (m *Manager) expand(ctx context.Context, pod *corev1.Pod, mounted *mountedVolume) error {
	if !canExpand(mounted) {
		return nil
	}
	ours := isNodeExpansionPending(mounted.Spec)
	if !ours && !lagsBehind(mounted) {
		return nil
	}
	claim := mounted.Spec.PVC
	if ours {
		if err := m.markInProgress(ctx, claim); err != nil {
			return err
		}
	}
	called, err := m.expandOnNode(ctx, mounted)
	if err != nil {
		if ours && ctx.Err() == nil {
			m.markFailed(ctx, claim, err)
		}
		return err
	}
	updated := false
	if ours && isExpanded(mounted) {
		if updated, err = m.markFinished(ctx, mounted.Spec); err != nil {
			return err
		}
	}
	if updated || called && !ours {
		message := fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", mounted.Spec.PV.Name,
			m.config.NodeName)
		m.deps.Recorder.Event(pod, corev1.EventTypeNormal, reasonResizeSuccessful, message)
		m.deps.Recorder.Event(claim, corev1.EventTypeNormal, reasonResizeSuccessful, message)
	}
	return nil
}

// expandOnNode does this node's part, once for all of its Pods, and reports whether anything was to be done.
func (m *Manager) expandOnNode(ctx context.Context, mounted *mountedVolume) (done bool, err error) {
	if isExpanded(mounted) {
		return false, nil
	}
	size := mounted.Spec.PV.Spec.Capacity.Storage()
	span := m.deps.Timeline.Begin(timeline.RefOf("PersistentVolumeClaim", mounted.Spec.PVC), "kubelet",
		timeline.StageGrowing, size.String())
	err = m.onDevice(ctx, mounted, opExpand, func(ctx context.Context) (err error) {
		if isExpanded(mounted) {
			return nil // another Pod was faster
		}
		if done, err = m.callPlugin(ctx, mounted); done {
			m.setExpanded(mounted)
		}
		return err
	})
	span.End(err)
	return done, err
}

// initialExpandedSize is the size that is heeded by setting a volume up: what its claim knows, unless several nodes share it and it
// stands from before. Then only its driver knows how large it is here.
func initialExpandedSize(request volume.Request) *atomic.Int64 {
	expandedTo, claim := new(atomic.Int64), request.Spec.PVC
	if claim == nil {
		return expandedTo
	}
	if expansion.IsShared(claim) {
		if _, err := os.Stat(request.Dir); !errors.Is(err, fs.ErrNotExist) {
			return expandedTo
		}
	}
	expandedTo.Store(claim.Status.Capacity.Storage().Value())
	return expandedTo
}

// isExpanded reports whether nothing is left to do here for the volume to be as large as it is.
func isExpanded(mounted *mountedVolume) bool {
	return mounted.expandedTo.Load() >= mounted.Spec.PV.Spec.Capacity.Storage().Value()
}

// lagsBehind reports whether this node has still to do its part, and another node has told the claim.
func lagsBehind(mounted *mountedVolume) bool {
	size, known := mounted.Spec.PV.Spec.Capacity.Storage(), mounted.Spec.PVC.Status.Capacity.Storage()
	return known.Cmp(*size) >= 0 && !isExpanded(mounted) && expansion.RequiredOnEveryNode(mounted.Spec.PVC)
}

// setExpanded notes that this node has done its part for a volume, for all of its Pods.
func (m *Manager) setExpanded(mounted *mountedVolume) {
	size := mounted.Spec.PV.Spec.Capacity.Storage().Value()
	mounted.expandedTo.Store(size)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, state := range m.pods {
		for _, other := range state.mounted {
			if other.Spec.PV != nil && other.Spec.PV.UID == mounted.Spec.PV.UID {
				other.expandedTo.Store(size)
			}
		}
	}
}

// markInProgress writes into the claim's status that the node does its part now.
func (m *Manager) markInProgress(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if expansion.ResizeStatus(claim) != corev1.PersistentVolumeClaimNodeResizePending {
		return nil
	}
	err := m.patchClaimStatus(ctx, claim, func(now *corev1.PersistentVolumeClaim) map[string]any {
		if expansion.ResizeStatus(now) != corev1.PersistentVolumeClaimNodeResizePending {
			return nil
		}
		return map[string]any{"allocatedResourceStatuses": map[string]any{
			"storage": corev1.PersistentVolumeClaimNodeResizeInProgress}}
	})
	if err != nil {
		return fmt.Errorf("tell claim %s/%s that its volume is about to grow: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// isNodeExpansionPending reports whether a volume has grown, and its file system is to follow.
func isNodeExpansionPending(spec volume.Spec) bool {
	size := spec.PV.Spec.Capacity[corev1.ResourceStorage]
	known, ok := spec.PVC.Status.Capacity[corev1.ResourceStorage]
	if !ok || size.Cmp(known) <= 0 {
		return false
	}
	switch expansion.ResizeStatus(spec.PVC) {
	case corev1.PersistentVolumeClaimControllerResizeInProgress:
		return false // whose resizer is about to say whether anything is left to do here
	case corev1.PersistentVolumeClaimNodeResizeInfeasible:
		return false // until the resizer says that it has changed
	}
	return true
}

func (m *Manager) callPlugin(ctx context.Context, mounted *mountedVolume) (done bool, err error) {
	expand := func(ctx context.Context) (err error) {
		done, err = mounted.plugin.(volume.Expander).Expand(ctx, volume.ExpandRequest{
			Spec: mounted.Spec, Dir: mounted.request.Dir, Path: mounted.Path,
		})
		return err
	}
	err = m.metrics.run(ctx, mounted.Spec.QualifiedPluginName(mounted.plugin.Name()), measuredGrowth, mounted.Block, expand)
	return done, err
}

// markFinished writes into the claim's status that its volume has grown and that nothing is left to do here, and reports whether
// nobody had yet. A resizer that works on a still larger size keeps its own words.
func (m *Manager) markFinished(ctx context.Context, spec volume.Spec) (updated bool, err error) {
	size := spec.PV.Spec.Capacity[corev1.ResourceStorage]
	err = m.patchClaimStatus(ctx, spec.PVC, func(claim *corev1.PersistentVolumeClaim) map[string]any {
		known := claim.Status.Capacity[corev1.ResourceStorage]
		if updated = known.Cmp(size) < 0; !updated {
			return nil // another Pod was faster
		}
		status := map[string]any{"capacity": map[string]any{"storage": size.String()}}
		gone := []corev1.PersistentVolumeClaimConditionType{
			corev1.PersistentVolumeClaimFileSystemResizePending, corev1.PersistentVolumeClaimNodeResizeError}
		if !isControllerStage(claim) {
			gone = append(gone, corev1.PersistentVolumeClaimResizing)
			status["allocatedResourceStatuses"] = map[string]any{"storage": nil}
		}
		status["conditions"] = expansion.ConditionsExcept(claim, gone...)
		return status
	})
	if err != nil {
		return false, fmt.Errorf("tell claim %s/%s that its volume has grown: %w", spec.PVC.Namespace, spec.PVC.Name, err)
	}
	return updated, nil
}

// isControllerStage reports whether the claim's status is for the resizer to change.
func isControllerStage(claim *corev1.PersistentVolumeClaim) bool {
	return strings.HasPrefix(string(expansion.ResizeStatus(claim)), "Controller")
}

// markFailed writes into the claim's status what became of an attempt that has failed for good.
func (m *Manager) markFailed(ctx context.Context, claim *corev1.PersistentVolumeClaim, failed error) {
	if volume.IsUncertain(failed) {
		return
	}
	err := m.patchClaimStatus(ctx, claim, func(claim *corev1.PersistentVolumeClaim) map[string]any {
		since := metav1.NewTime(m.clock.Now())
		for _, c := range claim.Status.Conditions {
			if c.Type == corev1.PersistentVolumeClaimNodeResizeError {
				if c.Message == failed.Error() && !volume.IsInfeasible(failed) {
					return nil // it says so already
				}
				since = c.LastTransitionTime
			}
		}
		status := map[string]any{"conditions": append(expansion.ConditionsExcept(claim, corev1.PersistentVolumeClaimNodeResizeError),
			corev1.PersistentVolumeClaimCondition{
				Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue,
				LastTransitionTime: since, Message: failed.Error()})}
		if volume.IsInfeasible(failed) && !isControllerStage(claim) {
			status["allocatedResourceStatuses"] = map[string]any{"storage": corev1.PersistentVolumeClaimNodeResizeInfeasible}
		}
		return status
	})
	if err != nil && ctx.Err() == nil {
		m.logger.Info("cannot tell a claim why its volume does not grow", "claim", claim.Name, "namespace", claim.Namespace,
			"error", err)
	}
}

// patchClaimStatus changes the status of a claim as change says, given the claim as it is by now. Nil is no change.
func (m *Manager) patchClaimStatus(ctx context.Context, claim *corev1.PersistentVolumeClaim,
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
