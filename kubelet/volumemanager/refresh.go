package volumemanager

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/volume"
)

// refreshLoop brings volumes up to date whose Pods were noted as changed, until ctx ends.
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
		case <-m.refreshQueued:
		}
		m.mu.Lock()
		dirty := m.podsToRefresh
		m.podsToRefresh = make(map[types.UID]struct{})
		m.mu.Unlock()
		for uid := range dirty {
			group.Go(func() error {
				if pause := m.refreshPod(ctx, uid); pause > 0 {
					later.Go(func() { m.refreshLater(ctx, uid, pause) })
				}
				return nil
			})
		}
	}
}

// refreshPod refreshes the volumes of one Pod that follow objects. It returns after how long to try again those that
// failed, 0 if none did or somebody waits for that already.
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
	var pause time.Duration
	for _, name := range names {
		key := volumeKey(uid, name)
		err := m.exec.Do(ctx, key, opRefresh, func(ctx context.Context) error { return m.refresh(ctx, state, name) })
		if err == nil || ctx.Err() != nil || state.isClosing() {
			continue
		}
		if m.isEnding(state) { // its objects and tokens go with it, and nobody waits for new content
			m.logger.Debug("cannot bring volume up to date", "uid", uid, "volume", name, "error", err)
			continue
		}
		m.logger.Warn("cannot bring volume up to date, its old content stays", "uid", uid, "volume", name, "error", err)
		m.reportFailure(state, name, reasonFailedMount, fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", name, err))
		if wait := m.exec.RetryAfter(key, opRefresh); pause == 0 || wait < pause {
			pause = wait
		}
	}
	if pause == 0 {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if state.refreshRetryPending {
		return 0
	}
	state.refreshRetryPending = true
	return pause
}

// isEnding reports whether the Pod is being deleted.
func (m *Manager) isEnding(state *podState) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return state.pod != nil && state.pod.DeletionTimestamp != nil
}

// refreshLater notes the Pod as changed after the pause.
func (m *Manager) refreshLater(ctx context.Context, uid types.UID, pause time.Duration) {
	m.mu.Lock()
	state, ok := m.pods[uid]
	m.mu.Unlock()
	if !ok {
		return
	}
	timer := m.clock.NewTimer(pause)
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

// refresh refreshes one volume.
func (m *Manager) refresh(ctx context.Context, state *podState, name string) error {
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
	if err := m.refreshVolume(ctx, mounted, request); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(state.lastEvents, name)
	return nil
}

// refreshVolume calls the plugin, and keeps others away from the device that the volume is made of.
func (m *Manager) refreshVolume(ctx context.Context, mounted *mountedVolume, request volume.Request) error {
	refresh := func(ctx context.Context) error { return mounted.plugin.(volume.Refresher).Refresh(ctx, request) }
	measured := refresh
	if remounter, ok := mounted.plugin.(volume.Remounter); !ok || remounter.RequiresRemount(ctx, mounted.Spec) {
		measured = func(ctx context.Context) error { return m.measureMount(ctx, mounted.plugin, request, refresh) }
	}
	return m.onDevice(ctx, mounted, opRefresh, measured)
}

// onDevice runs an operation on a volume that is set up under the key of its device, if it is made of one.
func (m *Manager) onDevice(
	ctx context.Context, mounted *mountedVolume, kind string, op func(context.Context) error,
) error {
	attachable, ok := mounted.plugin.(volume.Attachable)
	if !ok {
		return op(ctx)
	}
	device, err := attachable.DeviceOf(mounted.request.Dir)
	if err != nil {
		return err
	}
	if device == "" {
		return op(ctx)
	}
	return m.exec.Do(ctx, deviceKey(device), kind, op)
}
