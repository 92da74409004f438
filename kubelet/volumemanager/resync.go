package volumemanager

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/volume"
)

const (
	// resyncInterval is how often volumes are looked after that need it: those whose drivers want to be called again and
	// again, those that have failed to grow, and, where nobody tells of claims, those that may have grown: a node may not
	// watch claims.
	resyncInterval = time.Minute
	// reasonResizeSuccessful and reasonResizeFailed are the reasons of events.
	reasonResizeSuccessful = "FileSystemResizeSuccessful"
	reasonResizeFailed     = "FileSystemResizeFailed"
)

// needsResync reports whether a volume is to be looked after now and then, for want of an event.
func (m *Manager) needsResync(ctx context.Context, mounted *mountedVolume) bool {
	remounter, ok := mounted.plugin.(volume.Remounter)
	return m.deps.Claims == nil && canExpand(mounted) || ok && remounter.RequiresRemount(ctx, mounted.Spec)
}

// queueResync has the Pod's volumes looked after at the next time. The caller holds mu.
func (m *Manager) queueResync(uid types.UID) {
	m.podsToResync[uid] = struct{}{}
	signal(m.resyncQueued)
}

func canExpand(mounted *mountedVolume) bool {
	_, ok := mounted.plugin.(volume.Expander)
	return ok && mounted.Spec.PVC != nil && !mounted.ReadOnly
}

// resyncLoop looks after the volumes that need it, until ctx ends. It has no timer while there are none.
func (m *Manager) resyncLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.resyncQueued:
		}
		timer := m.clock.NewTimer(resyncInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
		m.resync(ctx)
	}
}

// resync looks once after the volumes that need it.
func (m *Manager) resync(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.podsToResync {
		m.queueRefresh(uid)
		m.queueExpansion(uid)
		again := false
		if state, ok := m.pods[uid]; ok {
			for _, mounted := range state.mounted {
				again = again || m.needsResync(ctx, mounted)
			}
		}
		if !again {
			delete(m.podsToResync, uid) // what failed to grow is noted anew if it fails again
		}
	}
	if len(m.podsToResync) > 0 {
		signal(m.resyncQueued)
	}
}

// expandPod has those of the Pod's volumes grow whose PersistentVolumes have. What fails is tried again at the next look.
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
	m.mu.Lock()
	pod := state.pod
	volumes := make(map[string]*mountedVolume, len(state.mounted))
	for name, mounted := range state.mounted {
		if canExpand(mounted) {
			volumes[name] = mounted
		}
	}
	m.mu.Unlock()
	for name, mounted := range volumes {
		fresh := *mounted
		if err := m.refetchClaim(ctx, &fresh.Spec); err != nil {
			m.logger.Debug("cannot see whether a volume has grown", "volume", name, "uid", state.uid, "error", err)
			m.retryAtResync(state, err)
			continue
		}
		if err := m.expand(ctx, pod, &fresh); err != nil && ctx.Err() == nil {
			m.reportFailure(state, name, reasonResizeFailed, fmt.Sprintf("NodeExpandVolume failed for volume %q : %v", name, err))
			m.retryAtResync(state, err)
		}
	}
}

// retryAtResync has the Pod's volumes looked after at the next time, unless what failed is that the claim is gone.
func (m *Manager) retryAtResync(state *podState, failed error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods[state.uid] == state && !apierrors.IsNotFound(failed) {
		m.queueResync(state.uid)
	}
}

// refetchClaim reads the claim and the PersistentVolume anew.
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
