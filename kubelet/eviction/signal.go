package eviction

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal names a resource of the node that a threshold is about, as KubeletConfiguration does.
type Signal string

// The signals. Memory and file systems are in bytes; inodes and process IDs are counted.
const (
	// MemoryAvailable is the memory of the machine that is neither in use nor cached for files in recent use.
	MemoryAvailable Signal = "memory.available"
	// AllocatableMemoryAvailable is the memory that is left below the limit of all Pods together.
	AllocatableMemoryAvailable Signal = "allocatableMemory.available"
	// NodeFsAvailable and NodeFsInodesFree are of the file system of the kubelet's directory.
	NodeFsAvailable  Signal = "nodefs.available"
	NodeFsInodesFree Signal = "nodefs.inodesFree"
	// ImageFsAvailable and ImageFsInodesFree are of the file system of the container runtime's images.
	ImageFsAvailable  Signal = "imagefs.available"
	ImageFsInodesFree Signal = "imagefs.inodesFree"
	// ContainerFsAvailable and ContainerFsInodesFree are of the file system of the containers' writable layers.
	ContainerFsAvailable  Signal = "containerfs.available"
	ContainerFsInodesFree Signal = "containerfs.inodesFree"
	// PIDAvailable is how many more processes the machine can have.
	PIDAvailable Signal = "pid.available"
)

// The resources that have no name in the API.
const (
	resourceInodes corev1.ResourceName = "inodes"
	resourcePIDs   corev1.ResourceName = "pids"
)

// signalInfo describes a signal.
type signalInfo struct {
	condition corev1.NodeConditionType
	// resource is the name of what is short, in events and messages.
	resource corev1.ResourceName
	// fastest is how much of it is used up in a second at most, on the machines of today.
	fastest int64
}

const (
	mebibyte = 1 << 20

	fastestMemory  = 4096 * mebibyte
	fastestDisk    = 2048 * mebibyte
	fastestInodes  = 200_000
	fastestForking = 20_000
)

// describe returns what is known of a signal, false for one that does not exist.
func describe(signal Signal) (signalInfo, bool) {
	memory := signalInfo{corev1.NodeMemoryPressure, corev1.ResourceMemory, fastestMemory}
	disk := signalInfo{corev1.NodeDiskPressure, corev1.ResourceEphemeralStorage, fastestDisk}
	inodes := signalInfo{corev1.NodeDiskPressure, resourceInodes, fastestInodes}
	switch signal {
	case MemoryAvailable, AllocatableMemoryAvailable:
		return memory, true
	case NodeFsAvailable, ImageFsAvailable, ContainerFsAvailable:
		return disk, true
	case NodeFsInodesFree, ImageFsInodesFree, ContainerFsInodesFree:
		return inodes, true
	case PIDAvailable:
		return signalInfo{corev1.NodePIDPressure, resourcePIDs, fastestForking}, true
	}
	return signalInfo{}, false
}

func (s Signal) condition() corev1.NodeConditionType {
	info, _ := describe(s)
	return info.condition
}

func (s Signal) resource() corev1.ResourceName {
	info, _ := describe(s)
	return info.resource
}

// quantity returns an amount of the signal's resource as messages have it.
func (s Signal) quantity(amount int64) *resource.Quantity {
	switch s.resource() {
	case resourceInodes, resourcePIDs:
		return resource.NewQuantity(amount, resource.DecimalSI)
	}
	return resource.NewQuantity(amount, resource.BinarySI)
}

// isDisk reports whether the signal is about a file system.
func (s Signal) isDisk() bool { return s.condition() == corev1.NodeDiskPressure }
