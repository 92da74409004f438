package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/kubelet/volumemanager/devices"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
)

// buildRequest finds the plugin of a volume and builds the request for it.
func (m *Manager) buildRequest(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (
	volume.Plugin, volume.Request, error,
) {
	spec, readOnly, err := m.resolve(ctx, pod, v)
	if err != nil {
		return nil, volume.Request{}, err
	}
	plugin, err := m.deps.Plugins.Find(spec)
	if err != nil {
		return nil, volume.Request{}, err
	}
	if err := volume.CheckDirName(spec.DirName()); err != nil {
		return nil, volume.Request{}, err
	}
	if err := m.checkNodeAffinity(ctx, spec.PV); err != nil {
		return nil, volume.Request{}, err
	}
	request := volume.Request{Pod: pod, Spec: spec, ReadOnly: readOnly, Dir: m.volumeDir(pod.UID, plugin, spec)}
	m.setGroup(&request, plugin)
	return plugin, request, nil
}

// setGroup requests the group that the Pod wants its volumes to have, and reports what becomes of it.
func (m *Manager) setGroup(request *volume.Request, plugin volume.Plugin) {
	security := request.Pod.Spec.SecurityContext
	if security == nil || security.FSGroup == nil {
		return
	}
	pod, spec, gid := request.Pod, request.Spec, *security.FSGroup
	warn := func(reason, format string, args ...any) {
		m.deps.Recorder.Event(pod, corev1.EventTypeWarning, reason, fmt.Sprintf(format, args...))
	}
	request.FSGroup = security.FSGroup
	if security.FSGroupChangePolicy != nil {
		request.FSGroupChangePolicy = *security.FSGroupChangePolicy
	}
	request.OnOwnershipProgress = func(files int64) {
		warn(reasonOwnershipInProgress, "Changing the group of volume %q to %d takes long, %d files are done; with fsGroupChangePolicy "+
			"OnRootMismatch a volume that has the group already is not changed", spec.Name, gid, files)
	}
	request.OnOwnershipRefused = func(files int, reason error) {
		warn(reasonOwnershipRefused, "Volume %q has %d files that cannot be given to the group %d, the first: %v; containers have the "+
			"access that these files allow them", spec.Name, files, gid, reason)
	}
	request.OnOwnershipKept = func(kept int64) {
		warn(reasonOwnershipKept, "The requested fsGroup is %d, but volume %q keeps the group %d, because other pods on this node use it; containers "+
			"have the access that this group has", gid, spec.Name, kept)
	}
	request.OnOwnershipChanged = func(took time.Duration, err error) {
		m.metrics.record(spec.QualifiedPluginName(plugin.Name()), measuredGroup, false, took, err)
	}
}

// volumeDir is the directory of a volume of a Pod.
func (m *Manager) volumeDir(uid types.UID, plugin volume.Plugin, spec volume.Spec) string {
	if spec.IsBlock() {
		return volume.DeviceDir(m.config.RootDir, uid, plugin.Name(), spec.DirName())
	}
	return volume.Dir(m.config.RootDir, uid, plugin.Name(), spec.DirName())
}

// attachAndSetUp makes one attempt to set up the volume. A volume that is a device of the node is attached and staged
// before. It sets the request's SELinux label.
func (m *Manager) attachAndSetUp(ctx context.Context, plugin volume.Plugin, request *volume.Request) (
	mount volume.Mount, err error,
) {
	setUp := func(ctx context.Context) (err error) {
		mount, err = setUpOrMap(ctx, plugin, *request)
		return err
	}
	attachable, ok := plugin.(volume.Attachable)
	if !ok {
		err := m.measureMount(ctx, plugin, *request, setUp)
		return mount, err
	}
	label, err := m.seLinux.labelOf(ctx, request.Pod, plugin, request.Spec)
	if err != nil {
		return volume.Mount{}, err
	}
	request.SELinuxLabel = label.Mounted
	device, path, err := m.acquireDevice(ctx, attachable, *request, label)
	for errors.Is(err, devices.ErrDriverChanged) {
		device, path, err = m.acquireDevice(ctx, attachable, *request, label)
	}
	if err != nil {
		return volume.Mount{}, err
	}
	if device.Name == "" {
		err := m.measureMount(ctx, plugin, *request, setUp)
		return mount, err
	}
	stageAndSetUp := func(ctx context.Context) error {
		if err := m.devices.Stage(ctx, device.Name, volume.StageRequest{
			DeviceName: device.Name, Spec: request.Spec, PodNamespace: request.Pod.Namespace, DevicePath: path, FSGroup: request.FSGroup,
			SELinuxLabel: request.SELinuxLabel,
		}); err != nil {
			return err
		}
		return setUp(ctx)
	}
	err = m.operations.Do(ctx, devices.Key(device.Name), opMount, func(ctx context.Context) error {
		return m.measureMount(ctx, plugin, *request, stageAndSetUp)
	})
	if err == nil {
		m.seLinux.admitted(plugin, request.Spec, label)
	}
	return mount, err
}

func (m *Manager) measureMount(ctx context.Context, plugin volume.Plugin, request volume.Request,
	op func(context.Context) error,
) error {
	return m.metrics.measure(ctx, request.Spec.QualifiedPluginName(plugin.Name()), measuredMount, request.Spec.IsBlock(), op)
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

// acquireDevice finds the volume's device, records that it is used, and waits until it is attached, if it has to be. It
// returns the device's path. The wait is a stage of the Pod's timeline.
func (m *Manager) acquireDevice(
	ctx context.Context, plugin volume.Attachable, request volume.Request, label devices.Label,
) (device volume.Device, path string, err error) {
	driversChanged := m.devices.RetrySignal()
	device, err = plugin.Device(ctx, request.Spec)
	if err != nil || device.Name == "" {
		return device, "", err
	}
	by := devices.VolumeRef{PodUID: request.Pod.UID, Dir: request.Dir}
	if err := m.acquire(plugin, device, by, request.Spec, label); err != nil {
		return device, "", err
	}
	if !device.Attach {
		return device, "", nil
	}
	end := func(error) {}
	wait := devices.AttachWait{Device: device.Name, DriversChanged: driversChanged}
	if reader, ok := plugin.(volume.AttachErrorReader); ok {
		wait.AttachError = func(ctx context.Context) error { return reader.AttachError(ctx, request.Spec) }
	}
	wait.OnWait = func() {
		span := timeline.Current(ctx).Begin("kubelet", timeline.StageAttach, request.Spec.Name)
		if request.Spec.PV != nil {
			span.SetCause(timeline.RefOf("PersistentVolume", request.Spec.PV))
		}
		end = span.End
	}
	path, err = m.devices.WaitAttached(ctx, wait)
	end(err)
	return device, path, err
}

// isExclusive reports whether only one Pod may use the volume at a time.
func isExclusive(spec volume.Spec) bool {
	return spec.PV != nil && slices.Contains(spec.PV.Spec.AccessModes, corev1.ReadWriteOncePod)
}

// runOnDevice runs an operation on a volume that is set up, under the key of its device if it has one.
func (m *Manager) runOnDevice(
	ctx context.Context, mounted *mountedVolume, kind string, op func(context.Context) error,
) error {
	attachable, ok := mounted.plugin.(volume.Attachable)
	if !ok {
		return op(ctx)
	}
	device, err := deviceOf(attachable, mounted.request.Dir)
	if err != nil {
		return err
	}
	if device == "" {
		return op(ctx)
	}
	return m.operations.Do(ctx, devices.Key(device), kind, op)
}
