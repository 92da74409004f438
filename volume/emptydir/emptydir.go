// Package emptydir is the volume plugin for emptyDir: a directory that is empty at first and goes with its Pod, on
// the node's disk, in memory or in huge pages.
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

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/mounts"
)

// Name is the plugin's name.
const Name = "kubernetes.io/empty-dir"

// Deps is what the plugin needs.
type Deps struct {
	// Mounter mounts the volumes that are in memory.
	Mounter mounts.Mounter
	// NodeAllocatable tells what Pods may use of this node: no volume in memory is larger. Nil is no bound.
	NodeAllocatable func() corev1.ResourceList
}

// Plugin is the volume plugin. It has no state.
type Plugin struct{ deps Deps }

var _ volume.Plugin = (*Plugin)(nil)

// New makes the plugin.
func New(deps Deps) *Plugin { return &Plugin{deps: deps} }

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
		return volume.Mount{}, fmt.Errorf("make directory for emptyDir %q: %w", req.Spec.Name, err)
	}
	var err error
	switch {
	case source.Medium == corev1.StorageMediumDefault:
		err = setUpDir(req)
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
	return volume.Mount{Path: req.Dir, ReadOnly: req.ReadOnly}, nil
}

// setUpDir makes the directory. It is born with no permission at all and gets its own last: so a directory that a
// crash left unfinished is known, and one that the Pod has changed the mode of is left as it is.
func setUpDir(req volume.Request) error {
	if err := os.Mkdir(req.Dir, 0); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(req.Dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is in the way and is no directory: remove it", req.Dir)
	}
	if info.Mode().Perm() != 0 {
		return nil
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

// setUpTmpfs mounts a tmpfs, with its mode and owner at once.
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
	var allocatable corev1.ResourceList
	if p.deps.NodeAllocatable != nil {
		allocatable = p.deps.NodeAllocatable()
	}
	if size := memorySize(req.Pod, limit, allocatable); size > 0 {
		options = append(options, "size="+strconv.FormatInt(size, 10))
	}
	return mounts.MountTmpfs(p.deps.Mounter, req.Dir, options...)
}

// memorySize is the smallest of the volume's own limit, the memory that the Pod may use, and the memory that all
// Pods may use, of those that are known; 0 if none is. Without a size the kernel takes half of the machine's memory.
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

// podMemoryLimit is what the Pod's cgroup may use at most, 0 if it has no limit: a limit of the Pod itself, or the
// sum over its containers if every one has a limit.
func podMemoryLimit(pod *corev1.Pod) int64 {
	if pod.Spec.Resources != nil {
		if limit, ok := pod.Spec.Resources.Limits[corev1.ResourceMemory]; ok {
			return limit.Value()
		}
	}
	var sum, sidecars, largestInit int64
	for i := range pod.Spec.InitContainers {
		container := &pod.Spec.InitContainers[i]
		limit, ok := container.Resources.Limits[corev1.ResourceMemory]
		if !ok {
			return 0
		}
		if container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars += limit.Value()
			largestInit = max(largestInit, sidecars)
			continue
		}
		largestInit = max(largestInit, sidecars+limit.Value())
	}
	for i := range pod.Spec.Containers {
		limit, ok := pod.Spec.Containers[i].Resources.Limits[corev1.ResourceMemory]
		if !ok {
			return 0
		}
		sum += limit.Value()
	}
	overhead := pod.Spec.Overhead[corev1.ResourceMemory]
	return max(sum+sidecars, largestInit) + overhead.Value()
}

// TearDown implements volume.Plugin.
func (p *Plugin) TearDown(ctx context.Context, dir string) error {
	return mounts.UnmountAndRemoveAll(ctx, p.deps.Mounter, dir)
}
