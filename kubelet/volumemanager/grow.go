package volumemanager

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/volume"
)

const (
	// lookEvery is how often volumes are looked after that need it: those whose drivers want to be called again and
	// again, and those that may have grown. A node may not watch claims, so there is no event for the latter.
	lookEvery = time.Minute
	// resizeDone and resizeFailed are the reasons of events.
	resizeDone   = "FileSystemResizeSuccessful"
	resizeFailed = "FileSystemResizeFailed"
)

// noteAgain notes a volume that is to be looked after. The caller holds mu.
func (m *Manager) noteAgain(ctx context.Context, uid types.UID, mounted *mountedVolume) {
	repeater, ok := mounted.plugin.(volume.Repeater)
	if canGrow(mounted) || ok && repeater.Repeats(ctx, mounted.Spec) {
		m.again[uid] = struct{}{}
		poke(m.lookAgain)
	}
}

func canGrow(mounted *mountedVolume) bool {
	_, ok := mounted.plugin.(volume.Expander)
	return ok && mounted.Spec.PVC != nil && !mounted.ReadOnly
}

// lookAfter looks after the volumes that need it, until ctx ends. It has no timer while there are none.
func (m *Manager) lookAfter(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.lookAgain:
		}
		timer := m.clock.NewTimer(lookEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
		var states []*podState
		m.mu.Lock()
		for uid := range m.again {
			m.markDirty(uid)
			if state, ok := m.pods[uid]; ok {
				states = append(states, state)
			}
		}
		if len(m.again) > 0 {
			poke(m.lookAgain)
		}
		m.mu.Unlock()
		var group errgroup.Group
		group.SetLimit(refreshers)
		for _, state := range states {
			group.Go(func() error { m.growPod(ctx, state); return nil })
		}
		_ = group.Wait() // the functions above return nil
	}
}

// growPod has those of the Pod's volumes grow whose PersistentVolumes have.
func (m *Manager) growPod(ctx context.Context, state *podState) {
	state.gate.RLock()
	defer state.gate.RUnlock()
	if state.isClosing() {
		return
	}
	ctx, cancel := state.untilClosing(ctx)
	defer cancel()
	m.mu.Lock()
	pod := state.pod
	volumes := make(map[string]*mountedVolume, len(state.mounted))
	for name, mounted := range state.mounted {
		volumes[name] = mounted
	}
	m.mu.Unlock()
	for name, mounted := range volumes {
		if !canGrow(mounted) {
			continue
		}
		fresh := *mounted
		if err := m.refetch(ctx, &fresh.Spec); err != nil {
			m.log.Debug("cannot see whether a volume has grown", "volume", name, "uid", state.uid, "error", err)
			continue
		}
		if err := m.grow(ctx, pod, &fresh); err != nil && ctx.Err() == nil {
			m.report(state, name, resizeFailed, fmt.Sprintf("NodeExpandVolume failed for volume %q : %v", name, err))
		}
	}
}

// refetch reads the claim and the PersistentVolume anew.
func (m *Manager) refetch(ctx context.Context, spec *volume.Spec) error {
	core := m.deps.Client.CoreV1()
	claim, err := core.PersistentVolumeClaims(spec.PVC.Namespace).Get(ctx, spec.PVC.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read claim %s/%s: %w", spec.PVC.Namespace, spec.PVC.Name, err)
	}
	pv, err := core.PersistentVolumes().Get(ctx, spec.PV.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read persistent volume %q: %w", spec.PV.Name, err)
	}
	spec.PVC, spec.PV = claim, pv
	return nil
}

// grow has the volume grow if its PersistentVolume is larger than its claim knows, and tells the claim.
func (m *Manager) grow(ctx context.Context, pod *corev1.Pod, mounted *mountedVolume) error {
	if !canGrow(mounted) {
		return nil
	}
	size := mounted.Spec.PV.Spec.Capacity[corev1.ResourceStorage]
	known, ok := mounted.Spec.PVC.Status.Capacity[corev1.ResourceStorage]
	if !ok || size.Cmp(known) <= 0 {
		return nil
	}
	done := false
	err := m.onDevice(ctx, mounted, opExpand, func(ctx context.Context) (err error) {
		done, err = mounted.plugin.(volume.Expander).Expand(ctx, volume.ExpandRequest{
			Spec: mounted.Spec, Dir: mounted.request.Dir, Path: mounted.Path,
		})
		return err
	})
	if err != nil || !done {
		return err
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

// tellClaim writes into the claim's status that its volume has grown and that nothing is left to do.
func (m *Manager) tellClaim(ctx context.Context, spec volume.Spec) error {
	claims := m.deps.Client.CoreV1().PersistentVolumeClaims(spec.PVC.Namespace)
	size := spec.PV.Spec.Capacity[corev1.ResourceStorage]
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		claim, err := claims.Get(ctx, spec.PVC.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		rest := slices.DeleteFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
			return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending ||
				c.Type == corev1.PersistentVolumeClaimResizing ||
				c.Type == corev1.PersistentVolumeClaimNodeResizeError
		})
		if rest == nil {
			rest = []corev1.PersistentVolumeClaimCondition{}
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion},
			"status": map[string]any{
				"capacity":                  map[string]any{"storage": size.String()},
				"conditions":                rest,
				"allocatedResourceStatuses": map[string]any{"storage": nil},
			},
		})
		if err != nil {
			return err
		}
		_, err = claims.Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
	if err != nil {
		return fmt.Errorf("tell claim %s/%s that its volume has grown: %w", spec.PVC.Namespace, spec.PVC.Name, err)
	}
	return nil
}
