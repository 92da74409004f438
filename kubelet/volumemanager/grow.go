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
	// lookEvery is how often volumes are looked after that need it: those whose drivers want to be called again and
	// again, those that have failed to grow, and, where nobody tells of claims, those that may have grown: a node may not
	// watch claims.
	lookEvery = time.Minute
	// resizeDone and resizeFailed are the reasons of events.
	resizeDone   = "FileSystemResizeSuccessful"
	resizeFailed = "FileSystemResizeFailed"
)

// needsLook reports whether a volume is to be looked after now and then, for want of an event.
func (m *Manager) needsLook(ctx context.Context, mounted *mountedVolume) bool {
	repeater, ok := mounted.plugin.(volume.Remounter)
	return m.deps.Claims == nil && canGrow(mounted) || ok && repeater.RequiresRemount(ctx, mounted.Spec)
}

// lookAt has the Pod's volumes looked after at the next time. The caller holds mu.
func (m *Manager) lookAt(uid types.UID) {
	m.again[uid] = struct{}{}
	poke(m.lookAgain)
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
		m.lookNow(ctx)
	}
}

// lookNow looks once after the volumes that need it.
func (m *Manager) lookNow(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.again {
		m.markDirty(uid)
		m.markGrown(uid)
		again := false
		if state, ok := m.pods[uid]; ok {
			for _, mounted := range state.mounted {
				again = again || m.needsLook(ctx, mounted)
			}
		}
		if !again {
			delete(m.again, uid) // what failed to grow is noted anew if it fails again
		}
	}
	if len(m.again) > 0 {
		poke(m.lookAgain)
	}
}

// growPod has those of the Pod's volumes grow whose PersistentVolumes have. What fails is tried again at the next look.
func (m *Manager) growPod(ctx context.Context, uid types.UID) {
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
		if canGrow(mounted) {
			volumes[name] = mounted
		}
	}
	m.mu.Unlock()
	for name, mounted := range volumes {
		fresh := *mounted
		if err := m.refetch(ctx, &fresh.Spec); err != nil {
			m.log.Debug("cannot see whether a volume has grown", "volume", name, "uid", state.uid, "error", err)
			m.lookAtLater(state, err)
			continue
		}
		if err := m.grow(ctx, pod, &fresh); err != nil && ctx.Err() == nil {
			m.report(state, name, resizeFailed, fmt.Sprintf("NodeExpandVolume failed for volume %q : %v", name, err))
			m.lookAtLater(state, err)
		}
	}
}

// lookAtLater has the Pod's volumes looked after at the next time, unless what failed is that the claim is gone.
func (m *Manager) lookAtLater(state *podState, failed error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods[state.uid] == state && !apierrors.IsNotFound(failed) {
		m.lookAt(state.uid)
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
