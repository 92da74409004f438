package iscsi

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/disk"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/selinux"
)

// Stage implements volume.Attachable: it connects the disk and, unless it is used as a device, mounts its file system.
func (p *Plugin) Stage(ctx context.Context, req volume.StageRequest) error {
	t, err := targetOf(req.Spec, req.PodNamespace)
	if err != nil {
		return err
	}
	unlock, err := p.targets.Lock(ctx, t.iqn)
	if err != nil {
		return fmt.Errorf("stage iscsi volume %q: wait for another volume of the target: %w", t.name, err)
	}
	r, err := p.begin(t, req.SELinuxLabel)
	if err != nil {
		unlock()
		return err
	}
	device, err := p.connect(ctx, t, r)
	unlock()
	if err == nil && device != "" {
		err = p.mount(t, r, device)
	}
	if err != nil {
		return volume.Uncertain(fmt.Errorf("connect iscsi volume %q, disk %d of %s: %w", t.name, t.lun, t.iqn, err))
	}
	return nil
}

// mount mounts the disk's file system for all Pods.
func (p *Plugin) mount(t *target, r *record, device string) error {
	dir := p.layout.stagingDir(r)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	options := slices.Clone(t.mountOptions)
	if t.readOnly {
		options = append(options, "ro")
	}
	if r.Label != "" {
		options = append(options, selinux.MountOption(r.Label))
	}
	return disk.Mount(p.deps.Mounter, device, dir, t.fsType, options)
}

// begin writes the record of the disk, unless there is one. The caller has the lock of the target.
func (p *Plugin) begin(t *target, label string) (*record, error) {
	r, err := p.records.load(t.device)
	if err != nil {
		return nil, err
	}
	fresh := recordOf(t, label)
	if r != nil {
		// What has to be undone stays, whatever the volume's objects say now.
		fresh.Sessions, fresh.NodeRecords = r.Sessions, r.NodeRecords
		if r.Interface != fresh.Interface || r.Portals[0] != fresh.Portals[0] || r.Block != fresh.Block {
			return nil, fmt.Errorf("stage iscsi volume %q: the disk is in use for volume %q by another portal, interface or mode", t.name, r.Volume)
		}
		if reflect.DeepEqual(r, fresh) {
			return r, nil
		}
	} else if err := p.adopt(fresh); err != nil {
		return nil, err
	}
	return fresh, p.records.save(fresh)
}

// adopt makes the sessions of a disk that is mounted, but has no record, the record's own: another kubelet made them.
func (p *Plugin) adopt(r *record) error {
	mounted, err := p.isMounted(r)
	if err != nil || !mounted {
		return err
	}
	sessions, err := p.kernel.sessions(r.IQN, r.Interface)
	for _, one := range sessions {
		r.Sessions = union(r.Sessions, []netip.AddrPort{one.portal})
	}
	r.NodeRecords = union(r.NodeRecords, r.Sessions)
	return err
}

// isMounted reports whether the disk's file system is mounted for Pods.
func (p *Plugin) isMounted(r *record) (bool, error) {
	mounted, err := p.deps.Mounter.IsMountPoint(p.layout.stagingDir(r))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return mounted, err
}

// connect makes the sessions that are missing, and returns the path of the disk's device that is to be mounted; empty if none is. One portal is
// enough; those that fail are logged. The caller has the lock of the target.
func (p *Plugin) connect(ctx context.Context, t *target, r *record) (string, error) {
	if !t.block {
		if mounted, err := p.isMounted(r); err != nil || mounted {
			return "", err
		}
	}
	if err := p.makeSessions(ctx, t, r); err != nil {
		return "", err
	}
	sessions, err := p.kernel.sessions(t.iqn, t.iface)
	if err != nil {
		return "", err
	}
	var disks []string
	var errs []error
	for _, one := range sessions {
		name, err := p.kernel.waitDisk(ctx, one, t.lun)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		disks = append(disks, name)
	}
	if len(disks) == 0 {
		return "", errors.Join(append(errs, fmt.Errorf("none of %d sessions has the disk", len(sessions)))...)
	}
	p.logMissingPaths(t, errs)
	if t.block {
		return "", nil
	}
	return p.kernel.device(ctx, disks), nil
}

func (p *Plugin) logMissingPaths(t *target, errs []error) {
	for _, err := range errs {
		p.deps.Logger.Warn("an iscsi volume has fewer paths than portals", "volume", t.name, "error", err)
	}
}

// makeSessions logs in at the portals that have no session. It fails if there is none in the end.
func (p *Plugin) makeSessions(ctx context.Context, t *target, r *record) error {
	sessions, err := p.kernel.sessions(t.iqn, t.iface)
	if err != nil {
		return err
	}
	has := func(portal netip.AddrPort) bool {
		return slices.ContainsFunc(sessions, func(one session) bool { return one.portal == portal })
	}
	if t.ifaceFrom != "" && !slices.ContainsFunc(t.portals, has) {
		if err := p.initiator.makeInterface(ctx, t); err != nil {
			return err
		}
	}
	var errs []error
	for _, portal := range t.portals {
		if has(portal) {
			continue
		}
		if err := p.initiator.login(ctx, t, r, portal); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == len(t.portals) {
		return errors.Join(errs...)
	}
	p.logMissingPaths(t, errs)
	return nil
}

// Unstage implements volume.Attachable. The disk is removed from the node, and the sessions of its target if no other disk needs them.
func (p *Plugin) Unstage(ctx context.Context, device string) error {
	r, err := p.records.load(device)
	if err != nil {
		return err
	}
	if r == nil {
		if r, err = p.unrecorded(device); r == nil || err != nil {
			return err
		}
	}
	if err := p.unstage(ctx, r); err != nil {
		return fmt.Errorf("disconnect iscsi volume %q, disk %d of %s: %w", r.Volume, r.LUN, r.IQN, err)
	}
	return nil
}

func (p *Plugin) unstage(ctx context.Context, r *record) error {
	if err := p.unmount(ctx, p.layout.stagingDir(r)); err != nil {
		return err
	}
	// Unmap has done that, unless it could not find out which disk a link was of.
	if err := p.pinner.UnpinAll(ctx, p.layout.pinsDir(r)); err != nil {
		return err
	}
	unlock, err := p.targets.Lock(ctx, r.IQN)
	if err != nil {
		return fmt.Errorf("wait for another volume of the target: %w", err)
	}
	defer unlock()
	if now, err := p.records.load(r.Device); err != nil {
		return err
	} else if now != nil {
		r = now // another disk may have left its sessions to this one
	}
	if err := p.removeDisks(ctx, r); err != nil {
		return err
	}
	if err := p.leaveSessions(ctx, r); err != nil {
		return err
	}
	return p.records.remove(r.Device)
}

// otherRecord is the file in which Kubernetes' kubelet keeps what it has to undo, below the mount of the disk.
const otherRecord = "iscsi.json"

func (p *Plugin) unmount(ctx context.Context, dir string) error {
	if err := mounts.UnmountPoint(ctx, p.deps.Mounter, dir); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, otherRecord)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return mounts.UnmountAndRemoveDir(ctx, p.deps.Mounter, dir)
}

// leaveSessions ends the target's sessions, or leaves them to another disk that needs them. The caller has the lock of the target.
func (p *Plugin) leaveSessions(ctx context.Context, r *record) error {
	others, err := p.records.sharing(r)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		if others[0].inherit(r) {
			return p.records.save(others[0])
		}
		return nil
	}
	all, err := p.disks()
	needed := func(other *record) bool { return other.Device != r.Device && other.sharesSessions(r) }
	if err != nil || slices.ContainsFunc(all, needed) {
		return err
	}
	return p.initiator.logout(ctx, r)
}

// removeDisks removes the disk's devices from the kernel, unless something else on the machine uses one.
func (p *Plugin) removeDisks(ctx context.Context, r *record) error {
	sessions, err := p.kernel.sessions(r.IQN, r.Interface)
	if err != nil {
		return err
	}
	for _, one := range sessions {
		name, _ := p.kernel.disk(one, r.LUN)
		if name == "" {
			continue
		}
		if joined := p.kernel.multipath(name); joined != "" {
			if err := p.kernel.flush(ctx, joined); err != nil {
				return err
			}
		}
		if p.kernel.isUsed(name) {
			return fmt.Errorf("device %s is still in use: unmount it", name)
		}
		if err := p.kernel.remove(name); err != nil {
			return err
		}
	}
	return nil
}

// Staged implements volume.Attachable.
func (p *Plugin) Staged() ([]volume.Device, error) {
	all, err := p.disks()
	if err != nil {
		return nil, err
	}
	var devices []volume.Device
	for _, r := range all {
		devices = append(devices, volume.Device{Name: r.Device, Attach: !p.config.Standalone, Block: r.Block, SELinuxLabel: r.Label})
	}
	return devices, nil
}

// disks are those that have a record, and then those that are mounted without one.
func (p *Plugin) disks() ([]*record, error) {
	recorded, err := p.records.list()
	if err != nil {
		return nil, err
	}
	names, err := p.layout.stagingDirs()
	if err != nil {
		return nil, err
	}
	found := recorded
	for _, name := range names {
		if slices.ContainsFunc(recorded, func(r *record) bool { return r.dirName() == name }) {
			continue
		}
		mounted, err := p.deps.Mounter.IsMountPoint(filepath.Join(string(p.layout), name))
		if err != nil || !mounted {
			continue
		}
		if r := recordOfDir(name); r != nil {
			found = append(found, r)
		}
	}
	return found, nil
}

// unrecorded returns a record of a disk that is mounted without one; nil if there is none.
func (p *Plugin) unrecorded(device string) (*record, error) {
	all, err := p.disks()
	for _, r := range all {
		if r.Device == device {
			return r, p.adopt(r)
		}
	}
	return nil, err
}

// DeviceOf implements volume.Attachable.
func (p *Plugin) DeviceOf(dir string) (string, error) {
	info, err := os.Lstat(dir)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("find the device of an iscsi volume: %w", err)
	}
	all, err := p.disks()
	if err != nil {
		return "", err
	}
	for _, r := range all {
		if p.isOf(r, dir, info.Mode()&os.ModeSymlink != 0) {
			return r.Device, nil
		}
	}
	return "", nil
}

// isOf reports whether a Pod's directory, or its link to a device, is of the record's disk.
func (p *Plugin) isOf(r *record, dir string, block bool) bool {
	if block != r.Block {
		return false
	}
	if !block {
		return sameDevice(dir, p.layout.stagingDir(r))
	}
	target, err := os.Readlink(dir)
	return err == nil && sameNode(target, p.layout.pin(r, podOf(dir)))
}
