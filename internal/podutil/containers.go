package podutil

import (
	"iter"

	corev1 "k8s.io/api/core/v1"
)

// Kind is the list of a Pod's spec that a container is in.
type Kind int

const (
	// Init is a container of spec.initContainers, sidecars included.
	Init Kind = iota
	// Regular is a container of spec.containers.
	Regular
	// Ephemeral is a container of spec.ephemeralContainers.
	Ephemeral
)

// Containers yields every container of the Pod: init containers, regular ones, ephemeral ones, each list in its order.
// The pointers are into the spec, so a caller that owns the Pod may modify the containers; an ephemeral container is
// yielded as the container that it has the fields of.
func Containers(spec *corev1.PodSpec) iter.Seq2[*corev1.Container, Kind] {
	return func(yield func(*corev1.Container, Kind) bool) {
		for i := range spec.InitContainers {
			if !yield(&spec.InitContainers[i], Init) {
				return
			}
		}
		for i := range spec.Containers {
			if !yield(&spec.Containers[i], Regular) {
				return
			}
		}
		for i := range spec.EphemeralContainers {
			if !yield((*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon), Ephemeral) {
				return
			}
		}
	}
}

// FindContainer returns the container of that name and its kind, or nil. Names are unique in a Pod.
func FindContainer(spec *corev1.PodSpec, name string) (*corev1.Container, Kind) {
	for container, kind := range Containers(spec) {
		if container.Name == name {
			return container, kind
		}
	}
	return nil, 0
}

// IsSidecar reports whether an init container is a sidecar: one that keeps running beside the regular containers.
// Only init containers may have restartPolicy Always, so a container of any list can be passed.
func IsSidecar(container *corev1.Container, kind Kind) bool {
	return kind == Init && container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// HasSidecar reports whether the Pod has a sidecar of that name.
func HasSidecar(spec *corev1.PodSpec, name string) bool {
	container, kind := FindContainer(spec, name)
	return container != nil && IsSidecar(container, kind)
}

// Statuses yields the status of every container of the Pod that has one, in the order of Containers. The pointers are into the
// Pod's status.
func Statuses(status *corev1.PodStatus) iter.Seq2[*corev1.ContainerStatus, Kind] {
	lists := [...][]corev1.ContainerStatus{
		Init: status.InitContainerStatuses, Regular: status.ContainerStatuses, Ephemeral: status.EphemeralContainerStatuses,
	}
	return func(yield func(*corev1.ContainerStatus, Kind) bool) {
		for kind, list := range lists {
			for i := range list {
				if !yield(&list[i], Kind(kind)) {
					return
				}
			}
		}
	}
}

// FindStatusOfAny returns the status of the Pod's container of that name, whatever its kind, or nil. It points into the Pod's status.
func FindStatusOfAny(status *corev1.PodStatus, name string) *corev1.ContainerStatus {
	for s := range Statuses(status) {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// FindStatus returns the container status of that name, or nil. It points into the list.
func FindStatus(statuses []corev1.ContainerStatus, name string) *corev1.ContainerStatus {
	for i := range statuses {
		if statuses[i].Name == name {
			return &statuses[i]
		}
	}
	return nil
}
