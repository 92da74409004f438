package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/fsgroup"
	"github.com/berth-dev/berth/volume/mounts"
)

// SetUp implements volume.Plugin: it has the driver mount the volume on req.Dir/mount, again if it is mounted.
func (p *Plugin) SetUp(ctx context.Context, req volume.Request) (volume.Mount, error) {
	target := filepath.Join(req.Dir, "mount")
	b, err := p.prepare(ctx, req, target)
	if err != nil {
		return volume.Mount{}, err
	}
	if err := os.MkdirAll(req.Dir, 0o750); err != nil {
		return volume.Mount{}, fmt.Errorf("make directory of volume %q: %w", b.source.name, err)
	}
	before, err := save(req.Dir, p.dataOf(b.source, b.attached))
	if err != nil {
		return volume.Mount{}, err
	}
	if err := b.publish(ctx); err != nil {
		mounted, _ := p.deps.Mounter.IsMountPoint(target)
		err = outcome(err, before, mounted)
		if !volume.IsUncertain(err) {
			err = errors.Join(err, p.removePublication(req.Dir))
		}
		return volume.Mount{}, err
	}
	if _, err := os.Stat(target); err != nil {
		return volume.Mount{}, volume.Uncertain(fmt.Errorf("csi driver %s: NodePublishVolume of volume %q: "+
			"it succeeded but the target is not there: %w", b.source.driver, b.source.name, err))
	}
	mount := volume.Mount{Path: target, ReadOnly: b.call.Readonly}
	if err := b.giveToGroup(ctx, req, target); err != nil {
		return volume.Mount{}, volume.Uncertain(err)
	}
	return mount, nil
}

// Refresh implements volume.Refresher: a driver that asked for it is called again, so that it can renew what it made
// of tokens. A failure leaves the mount as it is.
func (p *Plugin) Refresh(ctx context.Context, req volume.Request) error {
	if !p.Repeats(ctx, req.Spec) || req.Spec.IsBlock() {
		return nil
	}
	b, err := p.prepare(ctx, req, filepath.Join(req.Dir, "mount"))
	if err != nil {
		return err
	}
	return b.publish(ctx)
}

// publication is one call of NodePublishVolume with all that it needs.
type publication struct {
	source   *source
	driver   *Driver
	object   *storagev1.CSIDriver
	attached bool
	call     *csipb.NodePublishVolumeRequest
}

// prepare gathers what the call needs. Nothing is on disk yet.
func (p *Plugin) prepare(ctx context.Context, req volume.Request, target string) (*publication, error) {
	s, err := sourceOf(req.Spec, string(req.Pod.UID))
	if err != nil {
		return nil, err
	}
	b := &publication{source: s}
	if b.driver, err = p.deps.Drivers.Get(s.driver); err != nil {
		return nil, err
	}
	if b.object, err = p.info.get(ctx, s.driver); err != nil {
		return nil, err
	}
	if err := checkMode(b.object, s); err != nil {
		return nil, err
	}
	b.attached = !s.ephemeral && needsAttach(b.object)
	b.call = &csipb.NodePublishVolumeRequest{
		VolumeId: s.handle, TargetPath: target, Readonly: req.ReadOnly || s.readOnly,
		VolumeCapability: s.capability(b.driver, req.FSGroup),
	}
	if b.attached {
		if b.call.PublishContext, err = p.attachment(ctx, s); err != nil {
			return nil, err
		}
	}
	if !s.ephemeral && b.driver.stages() {
		b.call.StagingTargetPath = p.stagingPath(p.dataOf(s, b.attached))
	}
	if b.call.Secrets, err = p.secrets(ctx, s.publishSecret, req.Pod.Namespace); err != nil {
		return nil, err
	}
	var more map[string]string
	if b.call.VolumeContext, more, err = p.volumeContext(ctx, req.Pod, s, b.object); err != nil {
		return nil, err
	}
	if more != nil {
		if b.call.Secrets == nil {
			b.call.Secrets = make(map[string]string)
		}
		maps.Copy(b.call.Secrets, more)
	}
	return b, nil
}

func (b *publication) publish(ctx context.Context) error {
	return called(ctx, b.source.driver, "NodePublishVolume", b.source.name, func(ctx context.Context) error {
		_, err := b.driver.node.NodePublishVolume(ctx, b.call)
		return err
	})
}

// giveToGroup gives the volume to the Pod's group where the driver's policy wants that and the driver has not done it.
func (b *publication) giveToGroup(ctx context.Context, req volume.Request, path string) error {
	if req.FSGroup == nil || b.call.Readonly || b.driver.can(csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) {
		return nil
	}
	switch fsGroupPolicy(b.object) {
	case storagev1.NoneFSGroupPolicy:
		return nil
	case storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy:
		once := b.source.accessMode == corev1.ReadWriteOnce || b.source.accessMode == corev1.ReadWriteOncePod
		if b.source.fsType == "" || !once {
			return nil
		}
	}
	_, err := fsgroup.Apply(ctx, path, fsgroup.Options{
		GID: *req.FSGroup, Policy: req.FSGroupChangePolicy, Slow: req.Slow, Done: req.Regrouped,
	})
	if err != nil {
		return fmt.Errorf("set up volume %q: %w", b.source.name, err)
	}
	return nil
}

// TearDown implements volume.Plugin.
func (p *Plugin) TearDown(ctx context.Context, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	data, err := load(dir)
	if errors.Is(err, errNoData) {
		// SetUp died before it called anybody, or TearDown after it had; else what the driver has to undo is lost.
		if err := mounts.UnmountAll(ctx, p.deps.Mounter, dir); err != nil {
			return err
		}
		return p.removePublication(dir)
	}
	if err != nil {
		return err
	}
	if err := p.unpublish(ctx, data, filepath.Join(dir, "mount")); err != nil {
		return err
	}
	return p.removePublication(dir)
}

func (p *Plugin) unpublish(ctx context.Context, data *volumeData, target string) error {
	driver, err := p.deps.Drivers.Get(data.DriverName)
	if err != nil {
		return fmt.Errorf("unpublish volume %q: %w", data.SpecVolID, err)
	}
	return called(ctx, driver.Name, "NodeUnpublishVolume", data.SpecVolID, func(ctx context.Context) error {
		_, err := driver.node.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{
			VolumeId: data.VolumeHandle, TargetPath: target,
		})
		if p.isGone(err, target) {
			return nil
		}
		return err
	})
}

// removePublication removes a volume's directory: the empty target, the data file, and itself.
func (p *Plugin) removePublication(dir string) error {
	target := filepath.Join(dir, "mount")
	if err := p.refuseMountPoint(target); err != nil {
		return err
	}
	if err := removeEmpty(target); err != nil {
		return fmt.Errorf("remove target that the csi driver left: %w", err)
	}
	if err := forget(dir); err != nil {
		return err
	}
	if err := removeEmpty(dir); err != nil {
		return fmt.Errorf("remove volume directory: %w", err)
	}
	return nil
}
