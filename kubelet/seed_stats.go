package kubelet

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	v1 "github.com/google/cadvisor/info/v1"
	v2 "github.com/google/cadvisor/info/v2"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// GetCachedMachineInfo is what the machine has, as it was read first: without a reboot that does not change.
func (k *Kubelet) GetCachedMachineInfo() (*v1.MachineInfo, error) { return k.face.machineInfo() }

// GetContainerInfo is what a container of a Pod uses.
func (k *Kubelet) GetContainerInfo(podFullName string, podUID types.UID, containerName string,
	req *v1.ContainerInfoRequest,
) (*v1.ContainerInfo, error) {
	pod, err := k.findPod(podFullName, podUID)
	if err != nil {
		return nil, err
	}
	host := k.newHost()
	id, err := host.ContainerID(k.face.life, pod, containerName)
	if err != nil {
		return nil, err
	}
	group := path.Join(k.cgroups.CgroupParent(pod), id)
	return k.face.machine.ContainerInfo(group, req)
}

// GetContainerInfoV2 is what control groups use: the named one, or all below it if the options say so.
func (k *Kubelet) GetContainerInfoV2(name string, options v2.RequestOptions) (map[string]v2.ContainerInfo, error) {
	return k.face.machine.ContainerInfoV2(name, options)
}

// GetRawContainerInfo is what a control group uses, and with subcontainers each one below it, by name.
func (k *Kubelet) GetRawContainerInfo(containerName string, req *v1.ContainerInfoRequest, subcontainers bool,
) (map[string]*v1.ContainerInfo, error) {
	if subcontainers {
		return k.face.machine.SubcontainerInfo(containerName, req)
	}
	info, err := k.face.machine.ContainerInfo(containerName, req)
	if err != nil {
		return nil, err
	}
	return map[string]*v1.ContainerInfo{info.Name: info}, nil
}

// RootFsInfo is the file system of the Pods' directories.
func (k *Kubelet) RootFsInfo() (v2.FsInfo, error) {
	return k.face.machine.DirFsInfo(existing(k.face.machine.DirFsInfo, k.cfg.RootDir))
}

// existing is the path, or the nearest one above it that can be measured.
func existing(measure func(string) (v2.FsInfo, error), dir string) string {
	for {
		if _, err := measure(dir); err == nil || dir == path.Dir(dir) {
			return dir
		}
		dir = path.Dir(dir)
	}
}

// ImagesFsInfo is the file system of the container runtime's images.
func (k *Kubelet) ImagesFsInfo() (v2.FsInfo, error) {
	info, err := k.imagesFs(k.face.life)
	if err != nil {
		return v2.FsInfo{}, fmt.Errorf("measure file system of images: %w", err)
	}
	return info, nil
}

func (k *Kubelet) imagesFs(ctx context.Context) (v2.FsInfo, error) {
	resp, err := k.runtime.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return v2.FsInfo{}, err
	}
	for _, fs := range resp.GetImageFilesystems() {
		if dir := fs.GetFsId().GetMountpoint(); dir != "" {
			return k.face.machine.DirFsInfo(dir)
		}
	}
	return v2.FsInfo{}, errors.New("the container runtime names none")
}

// HasDedicatedImageFs reports whether images lie on another device than the Pods' directories.
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
