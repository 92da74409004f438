// Package local is the volume plugin for PersistentVolumes of type local: a directory or a block device of one node,
// for the Pods of that node.
package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/keylock"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/blockpin"
	"github.com/berth-dev/berth/volume/mounts"
)

// Name is the plugin's name.
const Name = "kubernetes.io/local-volume"

// Plugin is the volume plugin.
type Plugin struct {
	mounter mounts.Mounter
	disks   diskMounter
	pinner  *blockpin.Pinner
	// busy has, by its name, each PersistentVolume that is mounted and given to a Pod's group.
	busy keylock.Locks[string]
}

var (
	_ volume.Plugin      = (*Plugin)(nil)
	_ volume.BlockMapper = (*Plugin)(nil)
)

// New returns the plugin.
func New(mounter mounts.Mounter) *Plugin {
	return &Plugin{mounter: mounter, disks: diskMounter{mounter: mounter}, pinner: blockpin.New(blockpin.Deps{Mounter: mounter})}
}

// Name implements volume.Plugin.
func (p *Plugin) Name() string { return Name }

// CanSupport implements volume.Plugin.
func (p *Plugin) CanSupport(spec volume.Spec) bool {
	return spec.PV != nil && spec.PV.Spec.Local != nil
}

// SetUp implements volume.Plugin. The volume's directory is bind-mounted on req.Dir, read-only if the request is; of a
// block device the file system is mounted there.
func (p *Plugin) SetUp(ctx context.Context, req volume.Request) (volume.Mount, error) {
	pv := req.Spec.PV
	path := pv.Spec.Local.Path
	// From here on the descriptor is used, so that the directory cannot be replaced by another one.
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return volume.Mount{}, fmt.Errorf("open directory %q of local volume %q: %w", path, pv.Name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return volume.Mount{}, fmt.Errorf("stat directory %q of local volume %q: %w", path, pv.Name, err)
	}
	unlock, err := p.busy.Lock(ctx, pv.Name)
	if err != nil {
		return volume.Mount{}, fmt.Errorf("wait for another pod's mount of local volume %q: %w", pv.Name, err)
	}
	defer unlock()
	before, err := p.mounter.IsMountPoint(req.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return volume.Mount{}, fmt.Errorf("set up local volume %q: %w", pv.Name, err)
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		err = p.disks.mount(ctx, req, path, stat.Rdev)
	case unix.S_IFDIR:
		err = p.bind(ctx, req, fd, &stat)
	default:
		return volume.Mount{}, fmt.Errorf("set up local volume %q: %s is not a directory", pv.Name, path)
	}
	if err != nil {
		return volume.Mount{}, fmt.Errorf("mount local volume %q from %q: %w", pv.Name, path, err)
	}
	if err := p.applyGroup(ctx, req, !before); err != nil {
		return volume.Mount{}, fmt.Errorf("set up local volume %q: %w", pv.Name, err)
	}
	return volume.Mount{Path: req.Dir, ReadOnly: req.ReadOnly, SELinuxRelabel: !req.ReadOnly}, nil
}

// bind bind-mounts the opened directory on req.Dir, unless it is mounted there already.
func (p *Plugin) bind(ctx context.Context, req volume.Request, fd int, want *unix.Stat_t) error {
	matches := func(have *unix.Stat_t) bool { return have.Dev == want.Dev && have.Ino == want.Ino }
	return mounts.MountOnce(ctx, p.mounter, req.Dir, req.ReadOnly, matches, func() error {
		options := append([]string{"bind"}, req.Spec.MountOptions()...)
		if req.ReadOnly {
			options = append(options, "ro")
		}
		return p.mounter.Mount("/proc/self/fd/"+strconv.Itoa(fd), req.Dir, "", options)
	})
}

// TearDown implements volume.Plugin. The data is kept: the directory is unmounted and removed only if it is empty.
func (p *Plugin) TearDown(ctx context.Context, dir string) error {
	if err := mounts.UnmountAndRemoveDir(ctx, p.mounter, dir); err != nil {
		return err
	}
	return p.unmountShared(ctx, dir)
}
