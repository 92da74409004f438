package volumemanager

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/volume"
)

// maxConcurrentRefreshes is how many Pods' volumes are refreshed, and how many are expanded, at once.
const maxConcurrentRefreshes = 8

// refreshLoop refreshes the volumes of Pods that are queued for it, until ctx ends.
func (m *Manager) refreshLoop(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(maxConcurrentRefreshes)
	var later sync.WaitGroup
	defer later.Wait()
	defer func() { _ = group.Wait() }() // the functions below return nil
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.toRefresh.added.C():
		}
		for uid := range m.take(&m.toRefresh) {
			group.Go(contain.Func("volumemanager.refresh", string(uid), func() error {
				if backoff := m.refreshPod(ctx, uid); backoff > 0 {
					later.Go(contain.Guard("volumemanager.refreshLater", string(uid), func() { m.refreshLater(ctx, uid, backoff) }))
				}
				return nil
			}))
		}
	}
}

// refreshPod refreshes those volumes of a Pod that follow API objects. It returns the backoff of those that failed, 0 if
// none did or a retry is pending already.
func (m *Manager) refreshPod(ctx context.Context, uid types.UID) time.Duration {
	m.mu.Lock()
	state, ok := m.pods[uid]
	names := []string{}
	if ok {
		for name, mounted := range state.mounted {
			if _, follows := mounted.plugin.(volume.Refresher); follows {
				names = append(names, name)
			}
		}
	}
	m.mu.Unlock()
	var backoff time.Duration
	for _, name := range names {
		key := volumeKey(uid, name)
		err := m.operations.Do(ctx, key, opRefresh, func(ctx context.Context) error {
			return m.refreshVolume(ctx, state, name)
		})
		if err == nil || ctx.Err() != nil || state.isClosing() {
			continue
		}
		if m.isDeleted(state) { // its objects and tokens are deleted with it, and it needs no new content
			m.logger.Debug("failed to refresh volume of a deleted pod", "uid", uid, "volume", name, "error", err)
			continue
		}
		m.logger.Warn("failed to refresh volume; keeping its old content", "uid", uid, "volume", name, "error", err)
		m.reportFailure(state, name, reasonFailedMount, fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", name, err))
		if wait := m.operations.RetryAfter(key, opRefresh); backoff == 0 || wait < backoff {
			backoff = wait
		}
	}
	if backoff == 0 {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if state.refreshRetryPending {
		return 0
	}
	state.refreshRetryPending = true
	return backoff
}

// isDeleted reports whether the Pod is being deleted.
func (m *Manager) isDeleted(state *podState) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return state.pod != nil && state.pod.DeletionTimestamp != nil
}

// refreshLater queues the Pod for a refresh after the backoff.
func (m *Manager) refreshLater(ctx context.Context, uid types.UID, backoff time.Duration) {
	m.mu.Lock()
	state, ok := m.pods[uid]
	m.mu.Unlock()
	if !ok {
		return
	}
	timer := m.clock.NewTimer(backoff)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-state.closing:
		return
	case <-timer.C():
	}
	m.mu.Lock()
	state.refreshRetryPending = false
	m.mu.Unlock()
	m.onPodChanged(uid)
}

// refreshVolume makes one attempt to refresh a volume.
func (m *Manager) refreshVolume(ctx context.Context, state *podState, name string) error {
	state.gate.RLock()
	defer state.gate.RUnlock()
	if state.isClosing() {
		return nil
	}
	m.mu.Lock()
	mounted, ok := state.mounted[name]
	pod := state.pod
	m.mu.Unlock()
	if !ok {
		return nil
	}
	ctx, cancel := state.untilClosing(ctx)
	defer cancel()
	request := mounted.request
	request.Pod = pod
	if err := m.callRefresh(ctx, mounted, request); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(state.lastEvents, name)
	return nil
}

// callRefresh calls the plugin, under the key of the volume's device if it has one.
func (m *Manager) callRefresh(ctx context.Context, mounted *mountedVolume, request volume.Request) error {
	refresh := func(ctx context.Context) error { return mounted.plugin.(volume.Refresher).Refresh(ctx, request) }
	measured := refresh
	if remounter, ok := mounted.plugin.(volume.Remounter); !ok || remounter.RequiresRemount(ctx, mounted.Spec) {
		measured = func(ctx context.Context) error { return m.measureMount(ctx, mounted.plugin, request, refresh) }
	}
	return m.runOnDevice(ctx, mounted, opRefresh, measured)
}
