// Package emptydir is the volume plugin for emptyDir: a directory that is empty at first and is removed with its Pod,
// on the node's disk, in memory or in huge pages.
package emptydir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/projectquota"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
)

// Name is the plugin's name.
const Name = "kubernetes.io/empty-dir"

// Deps holds what the plugin uses.
type Deps struct {
	// Mounter mounts volumes in memory. It defaults to system calls.
	Mounter mounts.Mounter
	// NodeAllocatable returns the node's allocatable resources: no volume in memory is larger. Nil means no bound.
	NodeAllocatable func() corev1.ResourceList
	// ProjectQuotas makes the kernel count what volumes on disk occupy, where their file system has project quotas and their Pod a
	// user namespace of its own: other Pods could take their files out of the count.
	ProjectQuotas bool
}

// Plugin is the volume plugin.
type Plugin struct {
	deps Deps
	ids  projectquota.IDs
}

var _ volume.Plugin = (*Plugin)(nil)

// New returns the plugin.
func New(deps Deps) *Plugin {
	if deps.Mounter == nil {
		deps.Mounter = mounts.Syscalls{}
	}
	if deps.NodeAllocatable == nil {
		deps.NodeAllocatable = func() corev1.ResourceList { return nil }
	}
	return &Plugin{deps: deps}
}

// Name implements volume.Plugin.
func (p *Plugin) Name() string { return Name }

// CanSupport implements volume.Plugin.
func (p *Plugin) CanSupport(spec volume.Spec) bool {
	return spec.PV == nil && spec.Volume != nil && spec.Volume.EmptyDir != nil
}

// SetUp implements volume.Plugin.
func (p *Plugin) SetUp(_ context.Context, req volume.Request) (volume.Mount, error) {
	source := req.Spec.Volume.EmptyDir
	if err := os.MkdirAll(filepath.Dir(req.Dir), 0o750); err != nil {
		return volume.Mount{}, fmt.Errorf("create directory for emptyDir %q: %w", req.Spec.Name, err)
	}
	var err error
	switch {
	case source.Medium == corev1.StorageMediumDefault:
		err = p.setUpDir(req)
	case source.Medium == corev1.StorageMediumMemory:
		err = p.setUpTmpfs(req, source.SizeLimit)
	case isHugePages(source.Medium):
		err = p.setUpHugePages(req, source.Medium)
	default:
		return volume.Mount{}, volume.Unsupported(req.Spec, "emptyDir.medium",
			fmt.Sprintf("medium %q is not supported; use \"\", \"Memory\" or \"HugePages\"", source.Medium))
	}
	if err != nil {
		return volume.Mount{}, fmt.Errorf("set up emptyDir %q: %w", req.Spec.Name, err)
	}
	return volume.Mount{Path: req.Dir, ReadOnly: req.ReadOnly, SELinuxRelabel: true}, nil
}

// setUpDir creates the directory with mode 0 and sets its real mode last. So a directory that a crash left unfinished
// is recognised, and one whose mode the Pod has changed is left unchanged.
func (p *Plugin) setUpDir(req volume.Request) error {
	if err := os.Mkdir(req.Dir, 0); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(req.Dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s exists and is not a directory: remove it", req.Dir)
	}
	if info.Mode().Perm() != 0 {
		return nil
	}
	if p.deps.ProjectQuotas && podutil.HasUserNamespace(req.Pod) {
		if _, err := p.ids.Assign(req.Dir); err != nil {
			return err
		}
	}
	mode := os.FileMode(0o777)
	if req.FSGroup != nil {
		mode |= os.ModeSetgid
		if err := os.Lchown(req.Dir, -1, int(*req.FSGroup)); err != nil {
			return err
		}
	}
	return os.Chmod(req.Dir, mode)
}

// setUpTmpfs mounts a tmpfs, with mode and owner as mount options.
func (p *Plugin) setUpTmpfs(req volume.Request, limit *resource.Quantity) error {
	if err := os.Mkdir(req.Dir, 0o750); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	mounted, err := p.deps.Mounter.IsMountPoint(req.Dir)
	if err != nil || mounted {
		return err
	}
	// The sticky bit is that of every shared tmpfs: users may not remove each other's files.
	options := []string{"mode=1777"}
	if req.FSGroup != nil {
		options = []string{"mode=3777", "gid=" + strconv.FormatInt(*req.FSGroup, 10)}
	}
	if size := memorySize(req.Pod, limit, p.deps.NodeAllocatable()); size > 0 {
		options = append(options, "size="+strconv.FormatInt(size, 10))
	}
	return mounts.MountTmpfs(p.deps.Mounter, req.Dir, options...)
}

// memorySize returns the smallest of the volume's sizeLimit, the Pod's memory limit and the node's allocatable
// memory, of those that are known; 0 if none is. Without a size the kernel takes half of the machine's memory.
func memorySize(pod *corev1.Pod, limit *resource.Quantity, allocatable corev1.ResourceList) int64 {
	size := allocatable.Memory().Value()
	for _, bound := range []int64{podMemoryLimit(pod), limitValue(limit)} {
		if bound > 0 && (size == 0 || bound < size) {
			size = bound
		}
	}
	return size
}

func limitValue(limit *resource.Quantity) int64 {
	if limit == nil {
		return 0
	}
	return limit.Value()
}

// podMemoryLimit returns the memory limit of the Pod's cgroup, 0 if it has none: the limit of the Pod itself, or the
// sum over its containers if every one has a limit.
func podMemoryLimit(pod *corev1.Pod) int64 {
	overhead := pod.Spec.Overhead[corev1.ResourceMemory]
	if pod.Spec.Resources != nil {
		if limit := pod.Spec.Resources.Limits[corev1.ResourceMemory]; !limit.IsZero() {
			return limit.Value() + overhead.Value()
		}
	}
	var sum, sidecars, largestInit int64
	for container, kind := range podutil.Containers(&pod.Spec) {
		if kind == podutil.Ephemeral {
			continue // it has no resources
		}
		limit := container.Resources.Limits[corev1.ResourceMemory]
		if limit.IsZero() { // as without one
			return 0
		}
		switch {
		case kind == podutil.Regular:
			sum += limit.Value()
		case podutil.IsSidecar(container, kind):
			sidecars += limit.Value()
			largestInit = max(largestInit, sidecars)
		default:
			largestInit = max(largestInit, sidecars+limit.Value())
		}
	}
	return max(sum+sidecars, largestInit) + overhead.Value()
}

// TearDown implements volume.Plugin.
func (p *Plugin) TearDown(ctx context.Context, dir string) error {
	return mounts.UnmountAndRemoveAll(ctx, p.deps.Mounter, dir)
}
