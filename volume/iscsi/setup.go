package iscsi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/blockpin"
	"github.com/berth-dev/berth/volume/fsgroup"
	"github.com/berth-dev/berth/volume/mounts"
)

// SetUp implements volume.Plugin: it bind-mounts the file system that Stage has mounted.
func (p *Plugin) SetUp(ctx context.Context, req volume.Request) (volume.Mount, error) {
	t, err := targetOf(req.Spec, req.Pod.Namespace)
	if err != nil {
		return volume.Mount{}, err
	}
	readOnly := req.ReadOnly || t.readOnly
	if err := p.bind(ctx, req, p.layout.stagingDir(recordOf(t, "")), readOnly); err != nil {
		return volume.Mount{}, fmt.Errorf("set up iscsi volume %q: %w", t.name, err)
	}
	if !readOnly {
		if err := fsgroup.ApplyTo(ctx, req.Dir, req); err != nil {
			return volume.Mount{}, fmt.Errorf("set up iscsi volume %q: %w", t.name, err)
		}
	}
	return volume.Mount{Path: req.Dir, ReadOnly: readOnly, SELinuxRelabel: !readOnly}, nil
}

// bind mounts the staged file system on the Pod's directory. What is not mounted there would be a directory of the node.
func (p *Plugin) bind(ctx context.Context, req volume.Request, staged string, readOnly bool) error {
	mounted, err := p.deps.Mounter.IsMountPoint(staged)
	if err != nil {
		return err
	}
	if !mounted {
		return fmt.Errorf("the disk is not mounted on %s", staged)
	}
	var want unix.Stat_t
	if err := unix.Stat(staged, &want); err != nil {
		return &os.PathError{Op: "stat", Path: staged, Err: err}
	}
	matches := func(have *unix.Stat_t) bool { return have.Dev == want.Dev && have.Ino == want.Ino }
	return mounts.MountOnce(ctx, p.deps.Mounter, req.Dir, readOnly, matches, func() error {
		options := []string{"bind"}
		if readOnly {
			options = append(options, "ro")
		}
		return p.deps.Mounter.Mount(staged, req.Dir, "", options)
	})
}

// TearDown implements volume.Plugin. The data is on the target.
func (p *Plugin) TearDown(ctx context.Context, dir string) error {
	return mounts.UnmountAndRemoveDir(ctx, p.deps.Mounter, dir)
}

// Map implements volume.BlockMapper.
func (p *Plugin) Map(ctx context.Context, req volume.Request) (volume.Mount, error) {
	t, err := targetOf(req.Spec, req.Pod.Namespace)
	if err != nil {
		return volume.Mount{}, err
	}
	r := recordOf(t, "")
	device, err := p.staged(ctx, r)
	if err != nil {
		return volume.Mount{}, fmt.Errorf("map iscsi volume %q: %w", t.name, err)
	}
	if _, err := blockpin.Symlink(device, req.Dir); err != nil {
		return volume.Mount{}, fmt.Errorf("map iscsi volume %q: %w", t.name, err)
	}
	if err := p.pinner.Pin(ctx, device, p.layout.pin(r, string(req.Pod.UID))); err != nil {
		return volume.Mount{}, volume.Uncertain(fmt.Errorf("map iscsi volume %q: %w", t.name, err))
	}
	return volume.Mount{Path: device, ReadOnly: req.ReadOnly || t.readOnly}, nil
}

// staged returns the path of the device of a disk that is connected.
func (p *Plugin) staged(ctx context.Context, r *record) (string, error) {
	sessions, err := p.kernel.sessions(r.IQN, r.Interface)
	if err != nil {
		return "", err
	}
	var disks []string
	for _, one := range sessions {
		if name, _ := p.kernel.disk(one, r.LUN); name != "" {
			disks = append(disks, name)
		}
	}
	if len(disks) == 0 {
		return "", fmt.Errorf("disk %d of %s is not connected", r.LUN, r.IQN)
	}
	return p.kernel.device(ctx, disks), nil
}

// Unmap implements volume.BlockMapper. The link, by which the volume is found, is removed last.
func (p *Plugin) Unmap(ctx context.Context, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	all, err := p.records.list()
	if err != nil {
		return err
	}
	for _, r := range all {
		if p.isOf(r, dir, true) {
			if err := p.pinner.Unpin(ctx, p.layout.pin(r, podOf(dir))); err != nil {
				return fmt.Errorf("unmap iscsi volume %q: %w", filepath.Base(dir), err)
			}
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unmap iscsi volume %q: %w", filepath.Base(dir), err)
	}
	return nil
}

// podOf returns the UID of the Pod whose link to a device is at path: POD/volumeDevices/PLUGIN/VOLUME.
func podOf(path string) string {
	return filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(path))))
}

// sameDevice reports whether two directories are on the same file system.
func sameDevice(a, b string) bool {
	var first, second unix.Stat_t
	return unix.Stat(a, &first) == nil && unix.Stat(b, &second) == nil && first.Dev == second.Dev
}

// sameNode reports whether two paths are of the same block device.
func sameNode(a, b string) bool {
	var first, second unix.Stat_t
	return unix.Stat(a, &first) == nil && unix.Stat(b, &second) == nil && first.Rdev == second.Rdev && first.Rdev != 0
}
