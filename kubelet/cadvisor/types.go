package cadvisor

import (
	"context"

	v1 "github.com/google/cadvisor/info/v1"
	v2 "github.com/google/cadvisor/info/v2"
)

// Interface is what is known of the machine and its containers. Containers are named by their control groups.
type Interface interface {
	// MachineInfo is what the machine has.
	MachineInfo() (*v1.MachineInfo, error)
	// ContainerInfo is the use of one control group.
	ContainerInfo(name string, req *v1.ContainerInfoRequest) (*v1.ContainerInfo, error)
	// SubcontainerInfo is the use of a control group and of all below it, by name.
	SubcontainerInfo(name string, req *v1.ContainerInfoRequest) (map[string]*v1.ContainerInfo, error)
	// ContainerInfoV2 is the use of control groups in the newer types: of one, or with options.Recursive of all below.
	ContainerInfoV2(name string, options v2.RequestOptions) (map[string]v2.ContainerInfo, error)
	// DirFsInfo is the file system that a path is on.
	DirFsInfo(path string) (v2.FsInfo, error)
	// WatchOOM calls report with each kill of the kernel for lack of memory, until ctx ends. Name is the control group
	// whose limit was hit, "/" if it was the machine that had no more.
	WatchOOM(ctx context.Context, report func(name string, killed v1.OomKillEventData)) error
}
