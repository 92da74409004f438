package volumemanager

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/volume"
)

// resyncInterval is how often those volumes are refreshed and expanded that no event covers: volumes whose drivers
// require republishing, volumes whose expansion has failed, and, without a ClaimSource, volumes that may have become
// larger, because a node may not watch claims.
const resyncInterval = time.Minute

// needsResync reports whether the volume has to be resynced periodically.
func (m *Manager) needsResync(ctx context.Context, mounted *mountedVolume) bool {
	remounter, ok := mounted.plugin.(volume.Remounter)
	return m.deps.Claims == nil && canExpand(mounted) || ok && remounter.RequiresRemount(ctx, mounted.Spec)
}

// resyncLoop resyncs the volumes that need it, until ctx ends. It has no timer while there are none.
func (m *Manager) resyncLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.toResync.added.C():
		}
		if !wakeup.Sleep(ctx, m.clock, resyncInterval) {
			return
		}
		m.resync(ctx)
	}
}

// resync queues the Pods that need it for a refresh and an expansion.
func (m *Manager) resync(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.toResync.pods {
		m.toRefresh.add(uid)
		m.toExpand.add(uid)
		again := false
		if state, ok := m.pods[uid]; ok {
			for _, mounted := range state.mounted {
				again = again || m.needsResync(ctx, mounted)
			}
		}
		if !again {
			delete(m.toResync.pods, uid) // an expansion that fails again adds it again
		}
	}
	if len(m.toResync.pods) > 0 {
		m.toResync.added.Notify()
	}
}

// retryAtResync retries at the next resync, unless the error is that the claim no longer exists.
func (m *Manager) retryAtResync(state *podState, failed error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods[state.uid] == state && !apierrors.IsNotFound(failed) {
		m.toResync.add(state.uid)
	}
}
