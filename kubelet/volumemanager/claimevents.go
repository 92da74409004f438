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

// claimNames lists the claims that the Pod's volumes are made of.
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

// indexClaims notes which Pod uses which claims. The caller holds mu.
func (m *Manager) indexClaims(pod *corev1.Pod) {
	for _, claim := range claimNames(pod) {
		if m.podsByClaim[claim] == nil {
			m.podsByClaim[claim] = make(map[types.UID]struct{})
		}
		m.podsByClaim[claim][pod.UID] = struct{}{}
	}
}

// unindexClaims is its opposite. The caller holds mu.
func (m *Manager) unindexClaims(pod *corev1.Pod) {
	for _, claim := range claimNames(pod) {
		delete(m.podsByClaim[claim], pod.UID)
		if len(m.podsByClaim[claim]) == 0 {
			delete(m.podsByClaim, claim)
		}
	}
}

// onClaimChanged notes that a claim or its PersistentVolume changed: who waits for it tries again, and volumes that are
// set up may have to grow. Claims that no Pod of this node uses cost one look into a map.
func (m *Manager) onClaimChanged(namespace, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.podsByClaim[types.NamespacedName{Namespace: namespace, Name: name}] {
		if m.wakeWaiters(uid) {
			m.queueExpansion(uid)
		}
	}
}

// queueExpansion has somebody look whether volumes of the Pod are to grow. The caller holds mu.
func (m *Manager) queueExpansion(uid types.UID) {
	m.podsToExpand[uid] = struct{}{}
	signal(m.expandQueued)
}

// expandLoop has volumes grow whose claims were said to have changed, until ctx ends.
func (m *Manager) expandLoop(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(maxConcurrentRefreshes)
	defer func() { _ = group.Wait() }() // the functions below return nil
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.expandQueued:
		}
		m.mu.Lock()
		grown := m.podsToExpand
		m.podsToExpand = make(map[types.UID]struct{})
		m.mu.Unlock()
		for uid := range grown {
			group.Go(func() error {
				m.expandPod(ctx, uid)
				return nil
			})
		}
	}
}
