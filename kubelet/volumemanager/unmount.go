package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/internal/keyed"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
)

const (
	// minUnmountRetry and maxUnmountRetry bound the pause between two tries to unmount everything at the end.
	minUnmountRetry = 50 * time.Millisecond
	maxUnmountRetry = time.Second
	// maxConcurrentCleanups is how many Pods' leftovers are cleaned up at once.
	maxConcurrentCleanups = 8
)

// Unmount takes down all volumes of the Pod that are on disk, whoever set them up, and returns when they and
// POD/volumes are gone. What fails is tried again until ctx ends. The Pod's objects and tokens are let go. The Pod's
// containers must have ended. A Pod without volumes, or unknown, is fine. It waits until Start has seen what is on
// disk.
func (m *Manager) Unmount(ctx context.Context, uid types.UID) error {
	state := m.close(uid)
	select {
	case <-m.ready:
	case <-ctx.Done():
		return fmt.Errorf("unmount volumes of pod %s: %w", uid, ctx.Err())
	}
	for {
		retry := m.devices.retrySignal()
		err := m.unmountPod(ctx, state, uid)
		if err == nil {
			m.forget(uid, state)
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("unmount volumes of pod %s: %w", uid, err)
		}
		m.logger.Warn("cannot unmount volumes, trying again", "uid", uid, "error", err)
		m.reportFailure(state, "", reasonFailedUnmount, "UnmountVolume.TearDown failed : "+err.Error()+remedy(err))
		timer := m.clock.NewTimer(max(m.exec.RetryAfter(podKey(uid), opUnmount), time.Millisecond))
		select {
		case <-timer.C():
		case <-retry:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("unmount volumes of pod %s: %w", uid, err)
		}
	}
}

// podKey is the key of operations on all volumes of a Pod.
func podKey(uid types.UID) keyed.Key { return keyed.Key{Object: string(uid)} }

// close makes Mount and refreshes of the Pod end, and returns the Pod's state.
func (m *Manager) close(uid types.UID) *podState {
	m.mu.Lock()
	defer m.mu.Unlock()
	state, ok := m.pods[uid]
	if !ok {
		state = newPodState(uid)
		m.pods[uid] = state
	}
	if !state.isClosing() {
		close(state.closing)
	}
	return state
}

// forget drops all that is known of the Pod.
func (m *Manager) forget(uid types.UID, state *podState) {
	m.mu.Lock()
	if m.pods[uid] == state {
		delete(m.pods, uid)
		if state.pod != nil {
			m.unindexClaims(state.pod)
		}
	}
	delete(m.podsToRefresh, uid)
	delete(m.podsToResync, uid)
	delete(m.podsToExpand, uid)
	if state.pod != nil {
		for i := range state.pod.Spec.Volumes {
			m.exec.ForgetFailures(volumeKey(uid, state.pod.Spec.Volumes[i].Name))
		}
	}
	m.mu.Unlock()
	m.deps.Objects.Release(uid)
	m.deps.Tokens.Forget(uid)
}

// unmountPod makes one attempt at all volumes of the Pod.
func (m *Manager) unmountPod(ctx context.Context, state *podState, uid types.UID) error {
	return m.exec.Do(ctx, podKey(uid), opUnmount, func(ctx context.Context) error {
		state.gate.Lock() // until operations that had begun have ended; they were told to
		defer state.gate.Unlock()
		m.mu.Lock()
		if state.terminating == nil {
			state.terminating = maps.Clone(state.mounted)
		}
		clear(state.mounted)
		m.mu.Unlock()
		podDir := volume.PodDir(m.config.RootDir, uid)
		if err := m.subpaths.Cleanup(ctx, podDir); err != nil {
			return err
		}
		found, err := m.podVolumeDirs(uid)
		if err != nil {
			return err
		}
		var group errgroup.Group
		errs := make([]error, len(found))
		for i, dir := range found {
			group.Go(func() error {
				errs[i] = m.unmountVolume(ctx, state, uid, dir)
				return nil
			})
		}
		_ = group.Wait() // the errors are in errs
		if err := errors.Join(errs...); err != nil {
			return err
		}
		// Some may have asked for a device and never come so far as to be on disk.
		m.devices.releasePod(uid)
		for _, root := range []string{
			volume.PodVolumesDir(m.config.RootDir, uid), volume.PodDevicesDir(m.config.RootDir, uid),
		} {
			if err := mounts.RemoveTree(root); err != nil {
				return fmt.Errorf("remove volumes directory: %w", err)
			}
		}
		return nil
	})
}

// isOnDisk lists the directories of volumes: root/<plugin>/<volume>.
func listVolumeDirs(root string) ([]string, error) {
	var found []string
	plugins, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list volumes on disk: %w", err)
	}
	for _, plugin := range plugins {
		if !plugin.IsDir() {
			continue
		}
		volumes, err := os.ReadDir(filepath.Join(root, plugin.Name()))
		if err != nil {
			return nil, fmt.Errorf("list volumes on disk: %w", err)
		}
		for _, v := range volumes {
			found = append(found, filepath.Join(root, plugin.Name(), v.Name()))
		}
	}
	return found, nil
}

// unmountUnknownVolume takes a volume down that no plugin knows: it is unmounted, and removed only if it is empty. Nobody
// can say whether its content is precious.
func (m *Manager) unmountUnknownVolume(ctx context.Context, name, dir string) error {
	if err := mounts.UnmountAll(ctx, m.deps.Mounter, dir); err != nil {
		return fmt.Errorf("take down volume of unknown plugin %q: %w", name, err)
	}
	return mounts.UnmountAndRemoveDir(ctx, m.deps.Mounter, dir)
}

// RemovePodDir removes the Pod's whole directory, without passing through a mount point. Unmount must have succeeded
// before: if volumes are left it refuses. A missing directory is fine.
func (m *Manager) RemovePodDir(uid types.UID) error {
	left, err := m.podVolumeDirs(uid)
	if err != nil {
		return fmt.Errorf("remove directory of pod %s: %w", uid, err)
	}
	if len(left) > 0 {
		return fmt.Errorf("remove directory of pod %s: it still has volumes: %s", uid, strings.Join(left, ", "))
	}
	if err := mounts.RemoveTree(volume.PodDir(m.config.RootDir, uid)); err != nil {
		return fmt.Errorf("remove directory of pod %s: %w", uid, err)
	}
	return nil
}

// CleanupOrphans makes one attempt to take down the volumes, and to remove the directories, of all Pods that have a
// directory and that keep does not want. It goes on after an error and returns all of them; what is left is found
// again by the next call. It waits until Start has seen what is on disk.
func (m *Manager) CleanupOrphans(ctx context.Context, keep func(types.UID) bool) error {
	select {
	case <-m.ready:
	case <-ctx.Done():
		return fmt.Errorf("clean up after pods that are gone: %w", ctx.Err())
	}
	entries, err := os.ReadDir(volume.PodsDir(m.config.RootDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list pods on disk: %w", err)
	}
	var group errgroup.Group
	group.SetLimit(maxConcurrentCleanups)
	errs := make([]error, len(entries))
	for i, entry := range entries {
		uid := types.UID(entry.Name())
		if keep(uid) {
			continue
		}
		group.Go(func() error {
			state := m.close(uid)
			errs[i] = m.unmountPod(ctx, state, uid)
			if errs[i] == nil {
				errs[i] = m.RemovePodDir(uid)
			}
			m.forget(uid, state)
			if errs[i] != nil {
				errs[i] = fmt.Errorf("clean up after pod %s: %w", uid, errs[i])
			}
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	errs = append(errs, m.unpinOrphaned(ctx, keep))
	m.devices.unstageUnused()
	return errors.Join(errs...)
}

// UnmountAll unmounts everything below the root directory, and keeps all that is on disk, as a reboot would. From then
// on Mount and refreshes are refused. It is for a clean stop, when no container runs any more. What is busy is tried
// again until ctx ends.
func (m *Manager) UnmountAll(ctx context.Context) error {
	m.mu.Lock()
	m.stopped = true
	states := make([]*podState, 0, len(m.pods))
	for _, state := range m.pods {
		states = append(states, state)
	}
	m.mu.Unlock()
	for _, state := range states {
		m.close(state.uid)
		state.gate.Lock()
		m.mu.Lock()
		clear(state.mounted)
		m.mu.Unlock()
		state.gate.Unlock()
	}
	m.unmountGracefully(ctx)
	for pause := minUnmountRetry; ; pause = min(2*pause, maxUnmountRetry) {
		err := m.unmountBelowRoot(ctx)
		if err == nil {
			return nil
		}
		timer := m.clock.NewTimer(pause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("unmount all volumes: %w", err)
		}
	}
}

// unmountBelowRoot makes one attempt.
func (m *Manager) unmountBelowRoot(ctx context.Context) error {
	m.rootMu.Lock()
	defer m.rootMu.Unlock()
	root, err := filepath.EvalSymlinks(m.config.RootDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// What is held cannot be unmounted. What the plugins know of it stays on disk, as after a reboot.
	errs := []error{m.pinner.UnpinBelow(ctx, root)}
	paths, err := mounts.ListBelow(root)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, path := range paths {
		if path == root {
			continue
		}
		errs = append(errs, mounts.UnmountListed(m.deps.Mounter, path))
	}
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return err
	}
	return mounts.ReleaseShared(m.deps.Mounter, root)
}
