package volumemanager

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"
)

// ClaimSource reports changes of claims. A node may read its claims but not watch them; a kubelet that runs in one process
// with the controllers gets the changes from their watches.
type ClaimSource interface {
	// Subscribe calls changed for each claim that has changed, or whose PersistentVolume has, until cancel. The claims may
	// be those of any node. changed does not block and may be called from several goroutines; it is not called any more
	// when cancel has returned.
	Subscribe(changed func(namespace, name string)) (cancel func())
}

// claimNames lists the claims of the Pod's volumes.
func claimNames(pod *corev1.Pod) []types.NamespacedName {
	var claims []types.NamespacedName
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i]; {
		case v.PersistentVolumeClaim != nil:
			claims = append(claims, types.NamespacedName{Namespace: pod.Namespace, Name: v.PersistentVolumeClaim.ClaimName})
		case v.Ephemeral != nil:
			claims = append(claims, types.NamespacedName{Namespace: pod.Namespace, Name: ephemeral.VolumeClaimName(pod, v)})
		}
	}
	return claims
}

// indexClaims adds the Pod to podsByClaim. The caller holds mu.
func (m *Manager) indexClaims(pod *corev1.Pod) {
	for _, claim := range claimNames(pod) {
		if m.podsByClaim[claim] == nil {
			m.podsByClaim[claim] = make(map[types.UID]struct{})
		}
		m.podsByClaim[claim][pod.UID] = struct{}{}
	}
}

// unindexClaims removes the Pod from podsByClaim. The caller holds mu.
func (m *Manager) unindexClaims(pod *corev1.Pod) {
	for _, claim := range claimNames(pod) {
		delete(m.podsByClaim[claim], pod.UID)
		if len(m.podsByClaim[claim]) == 0 {
			delete(m.podsByClaim, claim)
		}
	}
}

// onClaimChanged retries the volumes that wait for the claim or its PersistentVolume, and expands those that are set up
// if they have become larger. A claim that no Pod of this node uses costs one map lookup.
func (m *Manager) onClaimChanged(namespace, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.podsByClaim[types.NamespacedName{Namespace: namespace, Name: name}] {
		if state, ok := m.pods[uid]; ok {
			state.retry.Notify()
			m.toExpand.add(uid)
		}
	}
}
