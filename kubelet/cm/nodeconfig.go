package cm

import (
	corev1 "k8s.io/api/core/v1"
)

// NodeConfig is the layout of the node's cgroups.
type NodeConfig struct {
	// RuntimeCgroupsName, SystemCgroupsName and KubeletCgroupsName are cgroups of the node's own programs. They are
	// reported, and created by what starts these programs.
	RuntimeCgroupsName, SystemCgroupsName, KubeletCgroupsName string
	// CgroupRoot is the cgroup that contains kubepods, created by CgroupDriver.
	CgroupRoot   string
	CgroupDriver string
	// CgroupsPerQOS says that each class of Pods has a cgroup of its own, which is always so here.
	CgroupsPerQOS bool
	// KubeReserved and SystemReserved are subtracted from what Pods may use.
	KubeReserved, SystemReserved corev1.ResourceList
	// PodPidsLimit is the largest number of processes of one Pod; no limit if not positive.
	PodPidsLimit int64
}

// ContainerManager reports the layout of the node's cgroups.
type ContainerManager interface {
	// GetNodeConfig returns the layout.
	GetNodeConfig() NodeConfig
}
