package cm

import (
	corev1 "k8s.io/api/core/v1"
)

// NodeConfig is how the node's control groups are laid out.
type NodeConfig struct {
	// RuntimeCgroupsName, SystemCgroupsName and KubeletCgroupsName are groups of the node's own programs. They are
	// reported, and made by whoever starts these programs.
	RuntimeCgroupsName, SystemCgroupsName, KubeletCgroupsName string
	// CgroupRoot is the group that holds kubepods, made by CgroupDriver.
	CgroupRoot   string
	CgroupDriver string
	// CgroupsPerQOS says that each class of Pods has a group of its own, which is always so here.
	CgroupsPerQOS bool
	// KubeReserved and SystemReserved are taken off what Pods may use.
	KubeReserved, SystemReserved corev1.ResourceList
	// PodPidsLimit is the most processes of one Pod; no limit if not positive.
	PodPidsLimit int64
}

// ContainerManager tells of the node's control groups.
type ContainerManager interface {
	// GetNodeConfig is how they are laid out.
	GetNodeConfig() NodeConfig
}
