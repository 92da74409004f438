package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
)

const (
	// minUnmountRetry and maxUnmountRetry bound the wait between two attempts to unmount everything.
	minUnmountRetry = 50 * time.Millisecond
	maxUnmountRetry = time.Second
	// gracefulUnmountTimeout is how long drivers may take, in all, to unpublish and unstage their volumes when everything
	// is unmounted.
	gracefulUnmountTimeout = 10 * time.Second
)

// UnmountAll unmounts everything below the root directory, and keeps all that is on disk, as a reboot would. Later calls
// of Mount are rejected. It is for a clean stop, when no container runs any more. A busy mount is retried until ctx ends.
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
	for wait := minUnmountRetry; ; wait = min(2*wait, maxUnmountRetry) {
		err := m.unmountBelowRoot(ctx)
		if err == nil {
			return nil
		}
		if !wakeup.Sleep(ctx, m.clock, wait) {
			return fmt.Errorf("unmount all volumes: %w", err)
		}
	}
}

// unmountGracefully makes one attempt to unmount and unstage the volumes of devices in the order that drivers require,
// before everything is unmounted by force. It gives up what a driver does not finish in time.
func (m *Manager) unmountGracefully(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, gracefulUnmountTimeout)
	defer cancel()
	for _, plugin := range m.deps.Plugins.All() {
		attachable, ok := plugin.(volume.Attachable)
		if !ok {
			continue
		}
		staged, err := attachable.Staged()
		if err != nil || len(staged) == 0 {
			continue
		}
		m.unmountVolumesOf(ctx, attachable)
		for _, device := range staged {
			if err := m.devices.Unstage(ctx, attachable, device); err != nil {
				m.logger.Warn("failed to unstage volume in order; unmounting it by force", "volume", device.Name, "error", err)
			}
		}
	}
}

// unmountVolumesOf unmounts the volumes of one plugin.
func (m *Manager) unmountVolumesOf(ctx context.Context, plugin volume.Attachable) {
	pods, err := os.ReadDir(volume.PodsDir(m.config.RootDir))
	if err != nil {
		return
	}
	for _, pod := range pods {
		uid := types.UID(pod.Name())
		found, err := m.podVolumeDirs(uid)
		if err != nil {
			continue
		}
		for _, dir := range found {
			if !strings.HasSuffix(filepath.Dir(dir), "/"+volume.EscapeName(plugin.Name())) {
				continue
			}
			if err := m.unmountVolume(ctx, nil, uid, dir); err != nil {
				m.logger.Warn("failed to unmount volume in order; unmounting it by force", "uid", uid, "error", err)
			}
		}
	}
}

// unmountBelowRoot makes one attempt to unmount everything below the root directory, and the root directory itself.
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
	// A pinned device cannot be unmounted. The plugins' files about it stay on disk, as after a reboot.
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
