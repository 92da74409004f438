package volumemanager

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"

	"golang.org/x/sync/errgroup"
)

// ClaimSource tells of changes of claims. A node's own identity may read its claims and not watch them; but where the
// controllers run in the same process, they know.
type ClaimSource interface {
	// Subscribe has changed called for each claim that has changed, or whose PersistentVolume has, until cancel. The
	// claims may be those of any node. changed returns soon and may be called from several goroutines; it is not called
	// any more when cancel has returned.
	Subscribe(changed func(namespace, name string)) (cancel func())
}

// claimsOf lists the claims that the Pod's volumes are made of.
func claimsOf(pod *corev1.Pod) []types.NamespacedName {
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

// noteClaims notes which Pod uses which claims. The caller holds mu.
func (m *Manager) noteClaims(pod *corev1.Pod) {
	for _, claim := range claimsOf(pod) {
		if m.claims[claim] == nil {
			m.claims[claim] = make(map[types.UID]struct{})
		}
		m.claims[claim][pod.UID] = struct{}{}
	}
}

// forgetClaims is its opposite. The caller holds mu.
func (m *Manager) forgetClaims(pod *corev1.Pod) {
	for _, claim := range claimsOf(pod) {
		delete(m.claims[claim], pod.UID)
		if len(m.claims[claim]) == 0 {
			delete(m.claims, claim)
		}
	}
}

// claimChanged notes that a claim or its PersistentVolume changed: who waits for it tries again, and volumes that are
// set up may have to grow. Claims that no Pod of this node uses cost one look into a map.
func (m *Manager) claimChanged(namespace, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.claims[types.NamespacedName{Namespace: namespace, Name: name}] {
		if m.tellWaiters(uid) {
			m.markGrown(uid)
		}
	}
}

// markGrown has somebody look whether volumes of the Pod are to grow. The caller holds mu.
func (m *Manager) markGrown(uid types.UID) {
	m.grown[uid] = struct{}{}
	poke(m.growing)
}

// growLoop has volumes grow whose claims were said to have changed, until ctx ends.
func (m *Manager) growLoop(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(refreshers)
	defer func() { _ = group.Wait() }() // the functions below return nil
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.growing:
		}
		m.mu.Lock()
		grown := m.grown
		m.grown = make(map[types.UID]struct{})
		m.mu.Unlock()
		for uid := range grown {
			group.Go(func() error {
				m.growPod(ctx, uid)
				return nil
			})
		}
	}
}
