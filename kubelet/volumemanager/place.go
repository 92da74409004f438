package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
)

// gracefulUnmountTimeout is how long drivers may take, in all, to take their volumes back when everything is unmounted.
const gracefulUnmountTimeout = 10 * time.Second

// attachAndSetUp makes one attempt to have the plugin set the volume up. What belongs to the node comes first: the volume is
// attached and staged.
func (m *Manager) attachAndSetUp(ctx context.Context, plugin volume.Plugin, request volume.Request) (volume.Mount, error) {
	attachable, ok := plugin.(volume.Attachable)
	if !ok {
		return m.setUpWithoutDevice(ctx, plugin, request)
	}
	device, path, err := m.acquireDevice(ctx, attachable, request)
	for errors.Is(err, errDriverChanged) {
		device, path, err = m.acquireDevice(ctx, attachable, request)
	}
	if err != nil {
		return volume.Mount{}, err
	}
	if device.Name == "" {
		return m.setUpWithoutDevice(ctx, plugin, request)
	}
	var mount volume.Mount
	stageAndSetUp := func(ctx context.Context) error {
		if err := m.devices.stage(ctx, device.Name, volume.StageRequest{
			DeviceName: device.Name, Spec: request.Spec, DevicePath: path, FSGroup: request.FSGroup,
		}); err != nil {
			return err
		}
		var err error
		mount, err = setUpOrMap(ctx, plugin, request)
		return err
	}
	err = m.exec.Do(ctx, deviceKey(device.Name), opMount, func(ctx context.Context) error {
		return m.measureMount(ctx, plugin, request, stageAndSetUp)
	})
	return mount, err
}

// setUpWithoutDevice has a volume set up that is no device.
func (m *Manager) setUpWithoutDevice(ctx context.Context, plugin volume.Plugin, request volume.Request) (
	mount volume.Mount, err error,
) {
	err = m.measureMount(ctx, plugin, request, func(ctx context.Context) error {
		var err error
		mount, err = setUpOrMap(ctx, plugin, request)
		return err
	})
	return mount, err
}

func (m *Manager) measureMount(ctx context.Context, plugin volume.Plugin, request volume.Request,
	op func(context.Context) error,
) error {
	return m.metrics.run(ctx, request.Spec.QualifiedPluginName(plugin.Name()), measuredMount, request.Spec.IsBlock(), op)
}

// setUpOrMap calls the plugin.
func setUpOrMap(ctx context.Context, plugin volume.Plugin, request volume.Request) (volume.Mount, error) {
	if !request.Spec.IsBlock() {
		return plugin.SetUp(ctx, request)
	}
	mapper, ok := plugin.(volume.BlockMapper)
	if !ok {
		return volume.Mount{}, volume.Unsupported(request.Spec, "volumeMode",
			fmt.Sprintf("volumes of %s cannot be used as block devices", plugin.Name()))
	}
	return mapper.Map(ctx, request)
}

// acquireDevice finds the volume's device, notes that it is used, and waits, if it needs that, until it is attached. It returns
// where. The wait is a stage of the Pod's timeline.
func (m *Manager) acquireDevice(
	ctx context.Context, plugin volume.Attachable, request volume.Request,
) (device volume.Device, path string, err error) {
	retry := m.devices.retrySignal()
	device, err = plugin.Device(ctx, request.Spec)
	if err != nil || device.Name == "" {
		return device, "", err
	}
	by := volumeRef{uid: request.Pod.UID, dir: request.Dir}
	if err := m.devices.acquire(plugin, device, by, isExclusive(request.Spec)); err != nil {
		return device, "", err
	}
	if !device.Attach {
		return device, "", nil
	}
	end := func(error) {}
	wait := attachWait{name: device.Name, driverChanged: retry}
	if errorReader, ok := plugin.(volume.AttachErrorReader); ok {
		wait.attachError = func(ctx context.Context) error { return errorReader.AttachError(ctx, request.Spec) }
	}
	wait.onWait = func() {
		span := timeline.Current(ctx).Begin("kubelet", timeline.StageAttach, request.Spec.Name)
		if request.Spec.PV != nil {
			span.SetCause(timeline.RefOf("PersistentVolume", request.Spec.PV))
		}
		end = span.End
	}
	path, err = m.devices.awaitAttached(ctx, wait)
	end(err)
	return device, path, err
}

// isExclusive reports whether only one Pod may use the volume at a time.
func isExclusive(spec volume.Spec) bool {
	return spec.PV != nil && slices.Contains(spec.PV.Spec.AccessModes, corev1.ReadWriteOncePod)
}

// NodeChanged takes a new state of this Node: it says which volumes are attached. It does not block.
func (m *Manager) NodeChanged(node *corev1.Node) { m.devices.onNodeChanged(node) }

// Retry has everything that failed tried again now. It is called when something came that many may have waited for,
// such as a CSI driver.
func (m *Manager) Retry() {
	m.devices.retry()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, state := range m.pods {
		close(state.retryCh)
		state.retryCh = make(chan struct{})
	}
}

// volumeDir is where a volume of a Pod is on disk.
func (m *Manager) volumeDir(uid types.UID, plugin volume.Plugin, spec volume.Spec) string {
	if spec.IsBlock() {
		return volume.DeviceDir(m.config.RootDir, uid, plugin.Name(), spec.DirName())
	}
	return volume.Dir(m.config.RootDir, uid, plugin.Name(), spec.DirName())
}

// podVolumeDirs lists a Pod's volumes, whoever set them up.
func (m *Manager) podVolumeDirs(uid types.UID) ([]string, error) {
	found, err := listVolumeDirs(volume.PodVolumesDir(m.config.RootDir, uid))
	if err != nil {
		return nil, err
	}
	devices, err := listVolumeDirs(volume.PodDevicesDir(m.config.RootDir, uid))
	return append(found, devices...), err
}

// unmountVolume takes one volume of a Pod down. The device that it is made of, if any, is let go. state may be nil.
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
		if device, err = attachable.DeviceOf(dir); err != nil {
			return fmt.Errorf("take down %s volume %q: %w", plugin.Name(), filepath.Base(dir), err)
		}
	}
	full := m.pluginName(state, plugin, dir, device)
	down := func(ctx context.Context) error {
		return m.metrics.run(ctx, full, measuredUnmount, isDeviceDir(dir),
			func(ctx context.Context) error { return m.tearDownOrUnmap(ctx, plugin, dir) })
	}
	if device == "" {
		err = down(ctx)
	} else {
		err = m.exec.Do(ctx, deviceKey(device), opUnmount, down)
	}
	if err != nil {
		return fmt.Errorf("take down %s volume %q: %w", plugin.Name(), filepath.Base(dir), err)
	}
	m.devices.release(device, volumeRef{uid: uid, dir: dir})
	return nil
}

// isDeviceDir reports whether a volume's directory is that of a block device.
func isDeviceDir(dir string) bool {
	return filepath.Base(filepath.Dir(filepath.Dir(dir))) == filepath.Base(volume.PodDevicesDir("", ""))
}

// tearDownOrUnmap calls the plugin.
func (m *Manager) tearDownOrUnmap(ctx context.Context, plugin volume.Plugin, dir string) error {
	if !isDeviceDir(dir) {
		return plugin.TearDown(ctx, dir)
	}
	mapper, ok := plugin.(volume.BlockMapper)
	if !ok {
		return errors.New("the plugin has no block devices; remove the directory by hand")
	}
	return mapper.Unmap(ctx, dir)
}

// recoverDevices finds on disk which devices are staged on this node, and which volumes of Pods are made of them.
func (m *Manager) recoverDevices() error {
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
			m.devices.recover(attachable, device)
		}
		// A volume may be left whose device is not known as staged: what stands there counts as attached too.
		for _, base := range []string{"volumes", "volumeDevices"} {
			if err := m.recoverDeviceUsers(attachable, base); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *Manager) recoverDeviceUsers(plugin volume.Attachable, base string) error {
	pods, err := os.ReadDir(volume.PodsDir(m.config.RootDir))
	if err != nil {
		return fmt.Errorf("list pods on disk: %w", err)
	}
	for _, pod := range pods {
		parent := filepath.Join(volume.PodsDir(m.config.RootDir), pod.Name(), base, volume.EscapeName(plugin.Name()))
		volumes, err := os.ReadDir(parent)
		if err != nil {
			continue // the Pod has none; what cannot be read is met again when it is taken down
		}
		for _, one := range volumes {
			dir := filepath.Join(parent, one.Name())
			name, err := plugin.DeviceOf(dir)
			if err != nil || name == "" {
				continue
			}
			device := volume.Device{Name: name}
			m.devices.recover(plugin, device, volumeRef{uid: types.UID(pod.Name()), dir: dir})
		}
	}
	return nil
}

// unmountGracefully makes one attempt to take the volumes of devices down in the order that their drivers want, before
// everything is unmounted by force. What a driver does not answer to in time is left to that.
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
			err := m.exec.Do(ctx, deviceKey(device.Name), opUnstage, func(ctx context.Context) error {
				return m.devices.callUnstage(ctx, attachable, device)
			})
			if err != nil {
				m.logger.Warn("volume was not unstaged in order", "volume", device.Name, "error", err)
			}
		}
	}
}

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
				m.logger.Warn("volume was not taken down in order", "uid", uid, "error", err)
			}
		}
	}
}
