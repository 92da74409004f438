package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/globs"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
)

// Device implements volume.Attachable. Every PersistentVolume is a device; inline volumes are not.
func (p *Plugin) Device(ctx context.Context, spec volume.Spec) (volume.Device, error) {
	if spec.PV == nil {
		return volume.Device{}, nil
	}
	s, err := sourceOf(spec, "")
	if err != nil {
		return volume.Device{}, err
	}
	object, err := p.csiDrivers.get(ctx, s.driver)
	if err != nil {
		return volume.Device{}, err
	}
	if err := checkLifecycleMode(object, s); err != nil {
		return volume.Device{}, err
	}
	return volume.Device{
		Name: deviceName(s.driver, s.handle), Attach: attachRequired(object), Driver: s.driver, Block: s.block,
	}, nil
}

// SupportsSELinuxMount implements volume.SELinuxMounter, as seLinuxMount of the volume's CSIDriver says.
func (p *Plugin) SupportsSELinuxMount(ctx context.Context, spec volume.Spec) (bool, error) {
	s, err := sourceOf(spec, "")
	if err != nil {
		return false, err
	}
	object, err := p.csiDrivers.get(ctx, s.driver)
	return err == nil && object != nil && object.Spec.SELinuxMount != nil && *object.Spec.SELinuxMount, err
}

// Stage implements volume.Attachable. A driver without the capability STAGE_UNSTAGE_VOLUME is not called.
func (p *Plugin) Stage(ctx context.Context, req volume.StageRequest) error {
	s, err := sourceOf(req.Spec, "")
	if err != nil {
		return err
	}
	driver, err := p.deps.Drivers.Get(s.driver)
	if err != nil {
		return err
	}
	object, err := p.csiDrivers.get(ctx, s.driver)
	if err != nil {
		return err
	}
	call := &csipb.NodeStageVolumeRequest{
		VolumeId: s.handle, VolumeContext: s.attributes, VolumeCapability: s.capability(driver, req.FSGroup, req.SELinuxLabel),
	}
	if attachRequired(object) {
		p.forgetPublishContext(req.DeviceName)
		if call.PublishContext, err = p.publishContext(ctx, s); err != nil {
			return err
		}
	}
	if call.Secrets, err = p.secrets(ctx, s.stageSecret, ""); err != nil {
		return err
	}
	dir, data := p.deviceDir(s.driver, s.handle), p.dataOf(s, attachRequired(object))
	data.SELinuxMountContext = req.SELinuxLabel
	call.StagingTargetPath = p.stagingPath(data)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("create staging directory of volume %q: %w", s.name, err)
	}
	before, err := p.saveData(dir, data)
	if err != nil || !driver.stages() {
		return err
	}
	err = p.stage(ctx, driver, call, s)
	if err == nil {
		return nil
	}
	mounted, _ := p.deps.Mounter.IsMountPoint(call.StagingTargetPath)
	err = classifyError(err, before, mounted)
	if volume.IsUncertain(err) {
		return err
	}
	if cleanErr := p.removeStageDirs(data); cleanErr != nil {
		return volume.Uncertain(errors.Join(err, cleanErr))
	}
	return err
}

func (p *Plugin) stage(ctx context.Context, driver *Driver, call *csipb.NodeStageVolumeRequest, s *source) error {
	if err := os.MkdirAll(call.StagingTargetPath, 0o750); err != nil {
		return fmt.Errorf("create staging directory of volume %q: %w", s.name, err)
	}
	return callDriver(ctx, s.driver, "NodeStageVolume", s.name, func(ctx context.Context) error {
		_, err := driver.node.NodeStageVolume(ctx, call)
		return err
	})
}

// Unstage implements volume.Attachable.
func (p *Plugin) Unstage(ctx context.Context, device string) error {
	name, handle, err := splitDeviceName(device)
	if err != nil {
		return err
	}
	data, err := p.stagedData(name, handle)
	if errors.Is(err, errNoData) {
		// Nothing was begun, or the data file is lost: unmount and remove what exists.
		if err := mounts.UnmountAll(ctx, p.deps.Mounter, p.deviceDir(name, handle)); err != nil {
			return err
		}
		return p.removeStageDirs(&volumeData{DriverName: name, VolumeHandle: handle})
	}
	if err != nil {
		return err
	}
	driver, err := p.deps.Drivers.Get(name)
	if err != nil {
		return fmt.Errorf("unstage volume %q: %w", data.SpecVolID, err)
	}
	if data.VolumeMode != "" {
		// Unmap has done that, unless a user has removed the directory of a Pod by hand.
		if err := p.pinner.UnpinAll(ctx, p.blockPinPath(data.SpecVolID, "")); err != nil {
			return fmt.Errorf("unstage volume %q: %w", data.SpecVolID, err)
		}
	}
	if driver.stages() {
		if err := p.unstage(ctx, driver, data); err != nil {
			return err
		}
	}
	p.forgetPublishContext(device)
	return p.removeStageDirs(data)
}

func (p *Plugin) unstage(ctx context.Context, driver *Driver, data *volumeData) error {
	path := p.stagingPath(data)
	return callDriver(ctx, driver.Name, "NodeUnstageVolume", data.SpecVolID, func(ctx context.Context) error {
		_, err := driver.node.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{
			VolumeId: data.VolumeHandle, StagingTargetPath: path,
		})
		if p.isGone(err, path) {
			return nil
		}
		return err
	})
}

// isGone reports whether an error means that the driver does not know the volume, and nothing is mounted at the path.
func (p *Plugin) isGone(err error, path string) bool {
	if status.Code(err) != codes.NotFound {
		return false
	}
	mounted, err := p.deps.Mounter.IsMountPoint(path)
	return errors.Is(err, os.ErrNotExist) || err == nil && !mounted
}

// removeStageDirs removes the directories of a device. It removes only empty directories: files that a driver left
// there may be valuable.
func (p *Plugin) removeStageDirs(data *volumeData) error {
	path := p.stagingPath(data)
	if err := p.checkNotMounted(path); err != nil {
		return err
	}
	if data.VolumeMode != "" {
		// A driver may leave its file there; the device is unstaged already.
		if err := mounts.RemoveTree(path); err != nil {
			return fmt.Errorf("remove staging directory of volume %q: %w", data.SpecVolID, err)
		}
		if err := mounts.RemoveTree(filepath.Join(p.blockDir(), data.SpecVolID)); err != nil {
			return fmt.Errorf("remove device directory of volume %q: %w", data.SpecVolID, err)
		}
	} else if err := removeEmpty(path); err != nil {
		return fmt.Errorf("remove staging directory of volume %q: %w", data.SpecVolID, err)
	}
	dir := p.deviceDir(data.DriverName, data.VolumeHandle)
	if err := removeData(dir); err != nil {
		return err
	}
	if err := removeEmpty(dir); err != nil {
		return fmt.Errorf("remove directory of volume %q: %w", data.SpecVolID, err)
	}
	return nil
}

// checkNotMounted returns an error if something is mounted at path.
func (p *Plugin) checkNotMounted(path string) error {
	mounted, err := p.deps.Mounter.IsMountPoint(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("check for a mount: %w", err)
	case mounted:
		return fmt.Errorf("remove %q: the csi driver left something mounted there", path)
	}
	return nil
}

// removeEmpty removes an empty directory. A missing one is fine.
func removeEmpty(dir string) error {
	if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// Staged implements volume.Attachable.
func (p *Plugin) Staged() ([]volume.Device, error) {
	files, err := filepath.Glob(filepath.Join(globs.Escape(p.dir()), "*", "*", dataFile))
	if err != nil {
		return nil, fmt.Errorf("list staged volumes: %w", err)
	}
	var devices []volume.Device
	for _, file := range files {
		data, err := loadData(filepath.Dir(file))
		if errors.Is(err, errNoData) {
			p.deps.Logger.Error("data file of a staged volume is damaged; the volume is staged again when a Pod needs it",
				"file", file, "error", err, "remedy", "none is needed: the file is written again")
			continue
		}
		if err != nil { // it may be readable later
			p.deps.Logger.Error("cannot read the data file of a staged volume; the others are not affected", "file", file, "error", err)
			continue
		}
		if filepath.Dir(file) != p.deviceDir(data.DriverName, data.VolumeHandle) {
			continue
		}
		devices = append(devices, deviceOf(data))
	}
	mapped, err := p.mappedData()
	if err != nil {
		return nil, err
	}
	for name, data := range mapped {
		if !slices.ContainsFunc(devices, func(one volume.Device) bool { return one.Name == name }) {
			devices = append(devices, deviceOf(data))
		}
	}
	return devices, nil
}

func deviceOf(data *volumeData) volume.Device {
	return volume.Device{
		Name: deviceName(data.DriverName, data.VolumeHandle), Attach: data.AttachmentID != "",
		Driver: data.DriverName, Block: data.VolumeMode != "", SELinuxLabel: data.SELinuxMountContext,
	}
}

// DeviceOf implements volume.Attachable.
func (p *Plugin) DeviceOf(dir string) (string, error) {
	info, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("find device of volume: %w", err)
	}
	if info.Mode()&os.ModeSymlink != 0 {
		dir = p.blockDataDir(filepath.Base(dir))
	}
	data, err := loadData(dir)
	switch {
	case err == errNoData: //nolint:errorlint // one that wraps it is of a damaged file
		return "", nil
	case errors.Is(err, errNoData):
		return "", fmt.Errorf("find device of volume: %w: %w", volume.ErrDeviceUnknown, err)
	}
	if err != nil || data.VolumeLifecycleMode == lifecycleEphemeral {
		return "", err
	}
	return deviceName(data.DriverName, data.VolumeHandle), nil
}
