package volumemanager

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/kubelet/volumemanager/expand"
	"github.com/berth-dev/berth/volume"
)

func canExpand(mounted *mountedVolume) bool {
	_, ok := mounted.plugin.(volume.Expander)
	return ok && mounted.Spec.PVC != nil && !mounted.ReadOnly
}

// expandLoop expands the volumes of Pods whose claims have changed, until ctx ends.
func (m *Manager) expandLoop(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(maxConcurrentRefreshes)
	defer func() { _ = group.Wait() }() // the functions below return nil
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.toExpand.added.C():
		}
		for uid := range m.take(&m.toExpand) {
			group.Go(contain.Func("volumemanager.expand", string(uid), func() error {
				m.expandPod(ctx, uid)
				return nil
			}))
		}
	}
}

// expandPod expands those volumes of the Pod whose PersistentVolumes have become larger. What fails is retried at the
// next resync.
func (m *Manager) expandPod(ctx context.Context, uid types.UID) {
	m.mu.Lock()
	state, ok := m.pods[uid]
	m.mu.Unlock()
	if !ok {
		return
	}
	state.gate.RLock()
	defer state.gate.RUnlock()
	if state.isClosing() {
		return
	}
	ctx, cancel := state.untilClosing(ctx)
	defer cancel()
	pod, volumes := m.mountedOf(state, canExpand)
	for name, mounted := range volumes {
		latest := *mounted
		if err := m.refetchClaim(ctx, &latest.Spec); err != nil {
			m.logger.Debug("failed to check whether a volume has become larger", "volume", name, "uid", state.uid, "error", err)
			m.retryAtResync(state, err)
			continue
		}
		if err := m.expandVolume(ctx, pod, &latest); err != nil && ctx.Err() == nil {
			m.reportFailedExpansion(state, name, err)
			m.retryAtResync(state, err)
		}
	}
}

// refetchClaim reads the claim and the PersistentVolume again.
func (m *Manager) refetchClaim(ctx context.Context, spec *volume.Spec) error {
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

// expandVolume expands the volume, if it can be and has to be.
func (m *Manager) expandVolume(ctx context.Context, pod *corev1.Pod, mounted *mountedVolume) error {
	if !canExpand(mounted) {
		return nil
	}
	return m.expander.Expand(ctx, pod, expand.Volume{
		Spec: mounted.Spec, ExpandedTo: mounted.expandedTo,
		CallPlugin: func(ctx context.Context) (bool, error) { return m.callExpand(ctx, mounted) },
		Exclusively: func(ctx context.Context, op func(context.Context) error) error {
			return m.runOnDevice(ctx, mounted, opExpand, op)
		},
		OnExpanded: func(size int64) { m.setExpanded(mounted.Spec.PV, size) },
	})
}

// callExpand calls the plugin.
func (m *Manager) callExpand(ctx context.Context, mounted *mountedVolume) (expanded bool, err error) {
	call := func(ctx context.Context) (err error) {
		expanded, err = mounted.plugin.(volume.Expander).Expand(ctx, volume.ExpandRequest{
			Spec: mounted.Spec, Dir: mounted.request.Dir, Path: mounted.Path,
		})
		return err
	}
	plugin := mounted.Spec.QualifiedPluginName(mounted.plugin.Name())
	err = m.metrics.measure(ctx, plugin, measuredExpand, mounted.Block, call)
	return expanded, err
}

// setExpanded records for all Pods that this node has expanded the volume.
func (m *Manager) setExpanded(pv *corev1.PersistentVolume, size int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, state := range m.pods {
		for _, mounted := range state.mounted {
			if mounted.Spec.PV != nil && mounted.Spec.PV.UID == pv.UID {
				mounted.expandedTo.Store(size)
			}
		}
	}
}

// reportFailedExpansion writes an event.
func (m *Manager) reportFailedExpansion(state *podState, name string, err error) {
	m.reportFailure(state, name, expand.ReasonFailed, fmt.Sprintf("NodeExpandVolume failed for volume %q : %v", name, err))
}
