// Package local is the volume plugin for PersistentVolumes of type local: a directory or a block device of one node,
// for the Pods of that node.
package local

import (
	"context"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/blockpin"
	"github.com/berth-dev/berth/volume/fsgroup"
	"github.com/berth-dev/berth/volume/mounts"
)

// Name is the plugin's name.
const Name = "kubernetes.io/local-volume"

// Plugin is the volume plugin.
type Plugin struct {
	mounter mounts.Mounter
	disks   diskMounter
	pinner  *blockpin.Pinner
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
	if err := checkNode(req); err != nil {
		return volume.Mount{}, err
	}
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
	if !req.ReadOnly {
		if err := fsgroup.ApplyTo(ctx, req.Dir, req); err != nil {
			return volume.Mount{}, fmt.Errorf("set up local volume %q: %w", pv.Name, err)
		}
	}
	return volume.Mount{Path: req.Dir, ReadOnly: req.ReadOnly, SELinuxRelabel: !req.ReadOnly}, nil
}

// checkNode rejects a volume whose data is on another node.
func checkNode(req volume.Request) error {
	pv := req.Spec.PV
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return fmt.Errorf("set up local volume %q: it has no spec.nodeAffinity, so its node is unknown", pv.Name)
	}
	if req.Node == nil {
		return fmt.Errorf("set up local volume %q: this node's labels are not known yet", pv.Name)
	}
	selector, err := nodeaffinity.NewNodeSelector(pv.Spec.NodeAffinity.Required)
	if err != nil {
		return fmt.Errorf("read spec.nodeAffinity of local volume %q: %w", pv.Name, err)
	}
	if !selector.Match(req.Node) {
		return fmt.Errorf("set up local volume %q: its spec.nodeAffinity does not match node %q: "+
			"its data is on another node", pv.Name, req.Node.Name)
	}
	return nil
}

// bind bind-mounts the opened directory on req.Dir, unless it is mounted there already.
func (p *Plugin) bind(ctx context.Context, req volume.Request, fd int, want *unix.Stat_t) error {
	matches := func(have *unix.Stat_t) bool { return have.Dev == want.Dev && have.Ino == want.Ino }
	return mounts.MountOnce(ctx, p.mounter, req.Dir, req.ReadOnly, matches, func() error {
		options := append([]string{"bind"}, req.Spec.PV.Spec.MountOptions...)
		if req.ReadOnly {
			options = append(options, "ro")
		}
		return p.mounter.Mount("/proc/self/fd/"+strconv.Itoa(fd), req.Dir, "", options)
	})
}

// TearDown implements volume.Plugin. The data is kept: the directory is unmounted and removed only if it is empty.
func (p *Plugin) TearDown(ctx context.Context, dir string) error {
	return mounts.UnmountAndRemoveDir(ctx, p.mounter, dir)
}
