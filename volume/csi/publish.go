package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/fsgroup"
	"github.com/berth-dev/berth/volume/mounts"
)

// SetUp implements volume.Plugin: the driver mounts the volume on req.Dir/mount. It is called even if it is mounted.
func (p *Plugin) SetUp(ctx context.Context, req volume.Request) (volume.Mount, error) {
	target := filepath.Join(req.Dir, "mount")
	b, err := p.prepare(ctx, req, target)
	if err != nil {
		return volume.Mount{}, err
	}
	if err := os.MkdirAll(req.Dir, 0o750); err != nil {
		return volume.Mount{}, fmt.Errorf("create directory of volume %q: %w", b.source.name, err)
	}
	data := p.dataOf(b.source, b.attached)
	data.SELinuxMountContext = req.SELinuxLabel
	before, err := p.saveData(req.Dir, data)
	if err != nil {
		return volume.Mount{}, err
	}
	if err := b.publish(ctx); err != nil {
		mounted, _ := p.deps.Mounter.IsMountPoint(target)
		err = classifyError(err, before, mounted)
		if !volume.IsUncertain(err) {
			err = errors.Join(err, p.removeVolumeDir(req.Dir))
		}
		return volume.Mount{}, err
	}
	if err := b.checkTarget(target); err != nil {
		return volume.Mount{}, volume.Uncertain(fmt.Errorf("csi driver %s: NodePublishVolume of volume %q: "+
			"it succeeded but the target does not exist: %w", b.source.driver, b.source.name, err))
	}
	mount := volume.Mount{Path: target, ReadOnly: b.request.Readonly, SELinuxRelabel: !b.request.Readonly}
	if err := b.applyFSGroup(ctx, req, target); err != nil {
		return volume.Mount{}, volume.Uncertain(err)
	}
	return mount, nil
}

// checkTarget returns an error if the driver has not made the target. What a Pod wrote to a persistent volume would be lost then. An inline
// volume is an empty directory in that case, as with Kubernetes' kubelet, whose container runtime makes it: upstream's mock driver
// publishes none.
func (b *publishCall) checkTarget(target string) error {
	_, err := os.Stat(target)
	if errors.Is(err, os.ErrNotExist) && b.source.ephemeral {
		return os.Mkdir(target, 0o755)
	}
	return err
}

// Refresh implements volume.Refresher: a driver with requiresRepublish is called again, so that it can renew what it
// derived from tokens. What it has written since gets the Pod's group, as in SetUp. A failure does not change the mount.
func (p *Plugin) Refresh(ctx context.Context, req volume.Request) error {
	if !p.RequiresRemount(ctx, req.Spec) || req.Spec.IsBlock() {
		return nil
	}
	target := filepath.Join(req.Dir, "mount")
	b, err := p.prepare(ctx, req, target)
	if err != nil {
		return err
	}
	if err := b.publish(ctx); err != nil {
		return err
	}
	req.OnOwnershipRefused = nil // SetUp has reported such files
	return b.applyFSGroup(ctx, req, target)
}

// publishCall is one call of NodePublishVolume with everything it needs.
type publishCall struct {
	source   *source
	driver   *Driver
	object   *storagev1.CSIDriver
	attached bool
	request  *csipb.NodePublishVolumeRequest
}

// prepare gathers what the call needs. It writes nothing to disk.
func (p *Plugin) prepare(ctx context.Context, req volume.Request, target string) (*publishCall, error) {
	s, err := sourceOf(req.Spec, string(req.Pod.UID))
	if err != nil {
		return nil, err
	}
	b := &publishCall{source: s}
	if b.driver, err = p.deps.Drivers.Get(s.driver); err != nil {
		return nil, err
	}
	if b.object, err = p.csiDrivers.get(ctx, s.driver); err != nil {
		return nil, err
	}
	if err := checkLifecycleMode(b.object, s); err != nil {
		return nil, err
	}
	b.attached = !s.ephemeral && attachRequired(b.object)
	b.request = &csipb.NodePublishVolumeRequest{
		VolumeId: s.handle, TargetPath: target, Readonly: req.ReadOnly || s.readOnly,
		VolumeCapability: s.capability(b.driver, req.FSGroup, req.SELinuxLabel),
	}
	if b.attached {
		if b.request.PublishContext, err = p.publishContext(ctx, s); err != nil {
			return nil, err
		}
	}
	if !s.ephemeral && b.driver.stages() {
		b.request.StagingTargetPath = p.stagingPath(p.dataOf(s, b.attached))
	}
	if b.request.Secrets, err = p.secrets(ctx, s.publishSecret, req.Pod.Namespace); err != nil {
		return nil, err
	}
	var extra map[string]string
	if b.request.VolumeContext, extra, err = p.volumeContext(ctx, req.Pod, s, b.object); err != nil {
		return nil, err
	}
	if extra != nil {
		if b.request.Secrets == nil {
			b.request.Secrets = make(map[string]string)
		}
		maps.Copy(b.request.Secrets, extra)
	}
	return b, nil
}

func (b *publishCall) publish(ctx context.Context) error {
	return callDriver(ctx, b.source.driver, "NodePublishVolume", b.source.name, func(ctx context.Context) error {
		_, err := b.driver.node.NodePublishVolume(ctx, b.request)
		return err
	})
}

// applyFSGroup changes the group of the volume to the Pod's fsGroup, if the driver's policy requires that and the
// driver does not do it.
func (b *publishCall) applyFSGroup(ctx context.Context, req volume.Request, path string) error {
	if req.FSGroup == nil || b.request.Readonly || b.driver.can(csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) {
		return nil
	}
	switch fsGroupPolicy(b.object) {
	case storagev1.NoneFSGroupPolicy:
		return nil
	case storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy:
		if b.source.fsType == "" || !isReadWriteOnce(req.Spec) {
			return nil
		}
	}
	if err := fsgroup.ApplyTo(ctx, path, req); err != nil {
		return fmt.Errorf("set up volume %q: %w", b.source.name, err)
	}
	return nil
}

// isReadWriteOnce reports whether one node at a time may write to the volume, as far as its access modes say. An inline volume is of one Pod.
func isReadWriteOnce(spec volume.Spec) bool {
	return spec.PV == nil || slices.ContainsFunc(spec.PV.Spec.AccessModes, func(mode corev1.PersistentVolumeAccessMode) bool {
		return mode == corev1.ReadWriteOnce || mode == corev1.ReadWriteOncePod
	})
}

// TearDown implements volume.Plugin.
func (p *Plugin) TearDown(ctx context.Context, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	data, err := loadData(dir)
	if errors.Is(err, errNoData) {
		// The process was killed in SetUp before the call, or in TearDown after it; or the data file is lost.
		if err := mounts.UnmountAll(ctx, p.deps.Mounter, dir); err != nil {
			return err
		}
		return p.removeVolumeDir(dir)
	}
	if err != nil {
		return err
	}
	if err := p.unpublish(ctx, data, filepath.Join(dir, "mount")); err != nil {
		return err
	}
	return p.removeVolumeDir(dir)
}

func (p *Plugin) unpublish(ctx context.Context, data *volumeData, target string) error {
	driver, err := p.deps.Drivers.Get(data.DriverName)
	if err != nil {
		return fmt.Errorf("unpublish volume %q: %w", data.SpecVolID, err)
	}
	return callDriver(ctx, driver.Name, "NodeUnpublishVolume", data.SpecVolID, func(ctx context.Context) error {
		_, err := driver.node.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{
			VolumeId: data.VolumeHandle, TargetPath: target,
		})
		if p.isGone(err, target) {
			return nil
		}
		return err
	})
}

// removeVolumeDir removes a volume's directory with the empty target and the data file.
func (p *Plugin) removeVolumeDir(dir string) error {
	target := filepath.Join(dir, "mount")
	if err := p.checkNotMounted(target); err != nil {
		return err
	}
	if err := removeEmpty(target); err != nil {
		return fmt.Errorf("remove target that the csi driver left: %w", err)
	}
	if err := removeData(dir); err != nil {
		return err
	}
	if err := removeEmpty(dir); err != nil {
		return fmt.Errorf("remove volume directory: %w", err)
	}
	return nil
}
