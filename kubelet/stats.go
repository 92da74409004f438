package kubelet

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"

	"github.com/berth-dev/berth/kubelet/cadvisor"
	"github.com/berth-dev/berth/kubelet/cm"
	v1 "github.com/google/cadvisor/info/v1"
	v2 "github.com/google/cadvisor/info/v2"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// GetCachedMachineInfo returns the machine's hardware, which is read once.
func (k *Kubelet) GetCachedMachineInfo() (*v1.MachineInfo, error) {
	return k.machine.info(k.deps.Machine)
}

// GetContainerInfo returns the usage of a container of a Pod.
func (k *Kubelet) GetContainerInfo(podFullName string, podUID types.UID, containerName string,
	req *v1.ContainerInfoRequest,
) (*v1.ContainerInfo, error) {
	pod, err := k.findPod(podFullName, podUID)
	if err != nil {
		return nil, err
	}
	host := k.parts.Host
	id, err := host.ContainerID(k.ctx, pod, containerName)
	if err != nil {
		return nil, err
	}
	var failures []error
	for _, name := range cm.ContainerCgroups(id) {
		info, err := k.deps.Machine.ContainerInfo(path.Join(k.parts.Cgroups.CgroupParent(pod), name), req)
		if err == nil {
			return info, nil
		}
		failures = append(failures, err)
	}
	return nil, fmt.Errorf("measure container %q of Pod %q: %w", containerName, podFullName, errors.Join(failures...))
}

// GetContainerInfoV2 returns the usage of cgroups: of the named one, or of all below it if the options say so.
func (k *Kubelet) GetContainerInfoV2(name string, options v2.RequestOptions) (map[string]v2.ContainerInfo, error) {
	return k.deps.Machine.ContainerInfoV2(name, options)
}

// GetRawContainerInfo returns the usage of a cgroup, and with subcontainers of each one below it, by name.
func (k *Kubelet) GetRawContainerInfo(containerName string, req *v1.ContainerInfoRequest, subcontainers bool,
) (map[string]*v1.ContainerInfo, error) {
	if subcontainers {
		return k.deps.Machine.SubcontainerInfo(containerName, req)
	}
	info, err := k.deps.Machine.ContainerInfo(containerName, req)
	if err != nil {
		return nil, err
	}
	return map[string]*v1.ContainerInfo{info.Name: info}, nil
}

// RootFsInfo returns the usage of the file system of the Pods' directories.
func (k *Kubelet) RootFsInfo() (v2.FsInfo, error) {
	return k.deps.Machine.DirFsInfo(nearestExisting(k.deps.Machine.DirFsInfo, k.config.RootDir))
}

// nearestExisting returns the path, or the nearest one above it that can be measured.
func nearestExisting(measure func(string) (v2.FsInfo, error), dir string) string {
	for {
		if _, err := measure(dir); err == nil || dir == path.Dir(dir) {
			return dir
		}
		dir = path.Dir(dir)
	}
}

// ImagesFsInfo returns the usage of the file system of the container runtime's images.
func (k *Kubelet) ImagesFsInfo() (v2.FsInfo, error) {
	info, err := k.imagesFs(k.ctx)
	if err != nil {
		return v2.FsInfo{}, fmt.Errorf("measure file system of images: %w", err)
	}
	return info, nil
}

func (k *Kubelet) imagesFs(ctx context.Context) (v2.FsInfo, error) {
	resp, err := k.parts.Runtime.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return v2.FsInfo{}, err
	}
	for _, fs := range resp.GetImageFilesystems() {
		if dir := fs.GetFsId().GetMountpoint(); dir != "" {
			return k.deps.Machine.DirFsInfo(dir)
		}
	}
	return v2.FsInfo{}, errors.New("the container runtime reports none")
}

// HasDedicatedImageFs reports whether images are on another device than the Pods' directories.
func (k *Kubelet) HasDedicatedImageFs() (bool, error) {
	images, err := k.ImagesFsInfo()
	if err != nil {
		return false, err
	}
	root, err := k.RootFsInfo()
	if err != nil {
		return false, err
	}
	return !strings.EqualFold(images.Device, root.Device), nil
}

// cachedMachine keeps the machine's hardware after it was read once.
type cachedMachine struct {
	mu     sync.Mutex // guards cached
	cached *v1.MachineInfo
}

func (c *cachedMachine) info(machine cadvisor.Interface) (*v1.MachineInfo, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cached == nil {
		info, err := machine.MachineInfo()
		if err != nil {
			return nil, err
		}
		c.cached = info
	}
	return c.cached, nil
}
