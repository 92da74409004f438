package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/kubelet/volumemanager/devices"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
)

// Unmount unmounts all volumes of the Pod that are on disk, whichever process set them up, and returns when they and
// POD/volumes are removed. What fails is retried until ctx ends. The Pod's objects and tokens are released. The Pod's
// containers must have ended. A Pod without volumes, or an unknown one, is fine. Unmount blocks until Start has read what
// is on disk.
func (m *Manager) Unmount(ctx context.Context, uid types.UID) error {
	state := m.close(uid)
	select {
	case <-m.ready:
	case <-ctx.Done():
		return fmt.Errorf("unmount volumes of pod %s: %w", uid, ctx.Err())
	}
	for {
		retry := m.devices.RetrySignal()
		err := m.unmountPod(ctx, state, uid)
		if err == nil {
			m.forget(uid, state)
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("unmount volumes of pod %s: %w", uid, err)
		}
		m.logger.Warn("failed to unmount volumes; retrying", "uid", uid, "error", err)
		m.reportFailure(state, "", reasonFailedUnmount, "UnmountVolume.TearDown failed : "+err.Error()+remedy(err))
		timer := m.clock.NewTimer(max(m.operations.RetryAfter(podKey(uid), opUnmount), time.Millisecond))
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

// unmountPod makes one attempt to unmount all volumes of the Pod.
func (m *Manager) unmountPod(ctx context.Context, state *podState, uid types.UID) error {
	return m.operations.Do(ctx, podKey(uid), opUnmount, func(ctx context.Context) error {
		state.gate.Lock() // waits for the operations that have begun; closing has cancelled them
		defer state.gate.Unlock()
		m.mu.Lock()
		if state.terminating == nil {
			state.terminating = maps.Clone(state.mounted)
		}
		clear(state.mounted)
		used := state.pod != nil // since the start of this process
		m.mu.Unlock()
		if err := m.subpaths.Cleanup(ctx, volume.PodDir(m.config.RootDir, uid)); err != nil {
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
				errs[i] = contain.Do("volumemanager.unmount", dir, func() error { return m.unmountVolume(ctx, state, uid, dir) })
				if !used {
					m.recovery.countCleaned(dir, errs[i])
				}
				return nil
			})
		}
		_ = group.Wait() // the errors are in errs
		if err := errors.Join(errs...); err != nil {
			return err
		}
		// Some volumes may have acquired a device and never got a directory.
		m.devices.ReleasePod(uid)
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

// unmountVolume unmounts one volume of a Pod and releases its device, if it has one. state may be nil.
func (m *Manager) unmountVolume(ctx context.Context, state *podState, uid types.UID, dir string) (err error) {
	span := timeline.Current(ctx).Begin("kubelet", timeline.StageUnmountOne, filepath.Base(dir))
	ctx = span.Context(ctx)
	defer func() { span.End(err) }()
	name := filepath.Base(filepath.Dir(dir))
	plugin, ok := m.deps.Plugins.ByDirName(name)
	if !ok {
		return m.unmountUnknownVolume(ctx, name, dir)
	}
	device := ""
	attachable, ok := plugin.(volume.Attachable)
	if ok {
		if device, err = deviceOf(attachable, dir); err != nil {
			return fmt.Errorf("unmount %s volume %q: %w", plugin.Name(), filepath.Base(dir), err)
		}
	}
	qualifiedName := m.pluginName(state, plugin, dir, device)
	unmount := func(ctx context.Context) error {
		return m.metrics.measure(ctx, qualifiedName, measuredUnmount, isDeviceDir(dir),
			func(ctx context.Context) error { return tearDownOrUnmap(ctx, plugin, dir) })
	}
	if device == "" {
		err = unmount(ctx)
	} else {
		err = m.operations.Do(ctx, devices.Key(device), opUnmount, unmount)
	}
	if err != nil {
		return fmt.Errorf("unmount %s volume %q: %w", plugin.Name(), filepath.Base(dir), err)
	}
	m.devices.Release(device, devices.VolumeRef{PodUID: uid, Dir: dir})
	return nil
}

// deviceOf returns the device of a volume, "" for one whose record is damaged: it is unmounted without.
func deviceOf(plugin volume.Attachable, dir string) (string, error) {
	device, err := plugin.DeviceOf(dir)
	if errors.Is(err, volume.ErrDeviceUnknown) {
		return "", nil
	}
	return device, err
}

// tearDownOrUnmap calls the plugin.
func tearDownOrUnmap(ctx context.Context, plugin volume.Plugin, dir string) error {
	if !isDeviceDir(dir) {
		return plugin.TearDown(ctx, dir)
	}
	mapper, ok := plugin.(volume.BlockMapper)
	if !ok {
		return errors.New("the plugin has no block devices; remove the directory by hand")
	}
	return mapper.Unmap(ctx, dir)
}

// unmountUnknownVolume unmounts a volume of an unknown plugin. Its directory is removed only if it is empty, because its
// content may be needed.
func (m *Manager) unmountUnknownVolume(ctx context.Context, name, dir string) error {
	if err := mounts.UnmountAll(ctx, m.deps.Mounter, dir); err != nil {
		return fmt.Errorf("unmount volume of unknown plugin %q: %w", name, err)
	}
	return mounts.UnmountAndRemoveDir(ctx, m.deps.Mounter, dir)
}

// podVolumeDirs lists the directories of a Pod's volumes, whichever process set them up.
func (m *Manager) podVolumeDirs(uid types.UID) ([]string, error) {
	found, err := listVolumeDirs(volume.PodVolumesDir(m.config.RootDir, uid))
	if err != nil {
		return nil, err
	}
	blockDevices, err := listVolumeDirs(volume.PodDevicesDir(m.config.RootDir, uid))
	return append(found, blockDevices...), err
}

// listVolumeDirs lists the directories of volumes: root/<plugin>/<volume>.
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

// isDeviceDir reports whether a volume's directory is that of a block device.
func isDeviceDir(dir string) bool {
	return filepath.Base(filepath.Dir(filepath.Dir(dir))) == filepath.Base(volume.PodDevicesDir("", ""))
}
