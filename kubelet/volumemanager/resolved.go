package volumemanager

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/volume"
)

// setResolved records which PersistentVolume a volume of the Pod refers to.
func (m *Manager) setResolved(state *podState, name string, spec volume.Spec) {
	if spec.PV == nil {
		return
	}
	m.mu.Lock()
	state.resolved[name] = spec.PV
	m.mu.Unlock()
	state.resolvedOne.Notify()
}

// PersistentVolumes returns those of the Pod's claims as soon as Mount has found all of them, before they are mounted. They
// must not be modified. A Pod without claims does not wait.
func (m *Manager) PersistentVolumes(ctx context.Context, pod *corev1.Pod) ([]*corev1.PersistentVolume, error) {
	var claims []string
	for _, v := range usedVolumes(pod) {
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			claims = append(claims, v.Name)
		}
	}
	if len(claims) == 0 {
		return nil, nil
	}
	state, err := m.podStateFor(pod)
	if err != nil {
		return nil, fmt.Errorf("find the volumes of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	for {
		changed := state.resolvedOne.Changed()
		if volumes := m.resolvedVolumes(state, claims); volumes != nil {
			return volumes, nil
		}
		select {
		case <-changed:
		case <-state.closing:
			return nil, fmt.Errorf("find the volumes of pod %s/%s: %w", pod.Namespace, pod.Name, ErrTerminating)
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the claims of pod %s/%s to be bound: %w", pod.Namespace, pod.Name, ctx.Err())
		}
	}
}

// resolvedVolumes returns the volumes of the names, nil if not all are known.
func (m *Manager) resolvedVolumes(state *podState, names []string) []*corev1.PersistentVolume {
	m.mu.Lock()
	defer m.mu.Unlock()
	var volumes []*corev1.PersistentVolume
	for _, name := range names {
		pv := state.resolved[name]
		if pv == nil {
			return nil
		}
		volumes = append(volumes, pv)
	}
	return volumes
}
