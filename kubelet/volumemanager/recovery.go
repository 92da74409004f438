package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/kubelet/volumemanager/devices"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
)

// maxConcurrentCleanups is how many Pods' directories are cleaned up at once.
const maxConcurrentCleanups = 8

// recoverVolumes finds on disk which devices an earlier process has staged, and which volumes of Pods use them.
func (m *Manager) recoverVolumes() error {
	for _, plugin := range m.deps.Plugins.All() {
		attachable, ok := plugin.(volume.Attachable)
		if !ok {
			continue
		}
		staged, err := attachable.Staged()
		if err != nil {
			return err
		}
		for _, device := range staged {
			m.devices.Recover(attachable, device)
		}
	}
	pods, err := os.ReadDir(volume.PodsDir(m.config.RootDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("list pods on disk: %w", err)
	}
	for _, pod := range pods {
		uid := types.UID(pod.Name())
		for _, root := range []string{volume.PodVolumesDir(m.config.RootDir, uid), volume.PodDevicesDir(m.config.RootDir, uid)} {
			for _, dir := range readableVolumeDirs(root) {
				err := m.recoverVolume(uid, dir)
				m.recovery.countRecovered(dir, err)
				if err != nil {
					m.logger.Warn("failed to recover a volume of an earlier process", "uid", uid, "path", dir, "error", err)
				}
			}
		}
	}
	return nil
}

// readableVolumeDirs lists root/<plugin>/<volume>. An unreadable directory causes an error when its volumes are unmounted.
func readableVolumeDirs(root string) (found []string) {
	plugins, err := os.ReadDir(root)
	if err != nil {
		return nil // the Pod may have none
	}
	for _, plugin := range plugins {
		parent := filepath.Join(root, plugin.Name())
		volumes, err := os.ReadDir(parent)
		if err != nil {
			continue
		}
		for _, one := range volumes {
			found = append(found, filepath.Join(parent, one.Name()))
		}
	}
	return found
}

// recoverVolume finds the plugin and the device of a volume. The device counts as attached even if it is not known as staged.
func (m *Manager) recoverVolume(uid types.UID, dir string) error {
	name := filepath.Base(filepath.Dir(dir))
	plugin, ok := m.deps.Plugins.ByDirName(name)
	if !ok {
		return fmt.Errorf("its plugin %q is unknown", name)
	}
	attachable, ok := plugin.(volume.Attachable)
	if !ok {
		return nil // all that is needed to unmount it is its directory
	}
	device, err := attachable.DeviceOf(dir)
	if err != nil {
		return err
	}
	if device != "" {
		m.devices.Recover(attachable, volume.Device{Name: device}, devices.VolumeRef{PodUID: uid, Dir: dir})
	}
	return nil
}

// CleanupOrphans makes one attempt to unmount the volumes and remove the directories of all Pods on disk for which keep
// returns false. It continues after an error and returns all of them; the next call finds what is left. It blocks until
// Start has read what is on disk.
func (m *Manager) CleanupOrphans(ctx context.Context, keep func(types.UID) bool) error {
	select {
	case <-m.ready:
	case <-ctx.Done():
		return fmt.Errorf("clean up orphaned pods: %w", ctx.Err())
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
	errs, found := make([]error, len(entries)), 0
	for i, entry := range entries {
		uid := types.UID(entry.Name())
		if keep(uid) {
			continue
		}
		found++
		group.Go(contain.Func("volumemanager.CleanupOrphans", string(uid), func() error {
			state := m.close(uid)
			errs[i] = m.unmountPod(ctx, state, uid)
			if errs[i] == nil {
				errs[i] = m.RemovePodDir(uid)
			}
			m.forget(uid, state)
			if errs[i] != nil {
				errs[i] = fmt.Errorf("clean up pod %s: %w", uid, errs[i])
			}
			return nil
		}))
	}
	_ = group.Wait() // the errors are in errs
	m.recovery.setOrphans(found, errs)
	errs = append(errs, m.unpinOrphaned(ctx, keep))
	m.devices.UnstageUnused()
	return errors.Join(errs...)
}

// RemovePodDir removes the Pod's whole directory, without passing through a mount point. It returns an error if volumes
// are left: Unmount must have succeeded before. A missing directory is fine.
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

// unpinOrphaned unpins the block devices of Pods whose directories no longer exist. No process leaves such pins, wherever
// it is killed, but a user who removes the directory of a Pod by hand does.
func (m *Manager) unpinOrphaned(ctx context.Context, keep func(types.UID) bool) error {
	pinned, err := m.pinner.ListBelow(m.config.RootDir)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range pinned {
		uid := types.UID(filepath.Base(path))
		_, err := os.Lstat(volume.PodDevicesDir(m.config.RootDir, uid))
		if keep(uid) || !errors.Is(err, os.ErrNotExist) {
			continue
		}
		m.logger.Warn("found a pinned block device of a pod whose directory does not exist; unpinning it", "uid", uid,
			"path", path)
		errs = append(errs, m.pinner.Unpin(ctx, path))
	}
	return errors.Join(errs...)
}
