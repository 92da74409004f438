package cadvisor

import (
	"context"

	v1 "github.com/google/cadvisor/info/v1"
	v2 "github.com/google/cadvisor/info/v2"
)

// Interface reports the machine's hardware and the usage of containers, which are named by their cgroups.
type Interface interface {
	// MachineInfo is what the machine has.
	MachineInfo() (*v1.MachineInfo, error)
	// ContainerInfo returns the usage of one cgroup.
	ContainerInfo(name string, req *v1.ContainerInfoRequest) (*v1.ContainerInfo, error)
	// SubcontainerInfo returns the usage of a cgroup and of all below it, by name.
	SubcontainerInfo(name string, req *v1.ContainerInfoRequest) (map[string]*v1.ContainerInfo, error)
	// ContainerInfoV2 returns the usage of cgroups in the newer types: of one, or with options.Recursive of all below.
	ContainerInfoV2(name string, options v2.RequestOptions) (map[string]v2.ContainerInfo, error)
	// DirFsInfo is the file system that a path is on.
	DirFsInfo(path string) (v2.FsInfo, error)
	// WatchOOM calls report with each OOM kill of the kernel, until ctx ends. Name is the cgroup
	// whose limit was hit, "/" if it was the machine that had no more.
	WatchOOM(ctx context.Context, report func(name string, killed v1.OomKillEventData)) error
}
