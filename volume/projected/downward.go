package projected

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/downwardapi"
)

// podField is the value of a field that a downwardAPI volume may name.
func podField(pod *corev1.Pod, path string) (string, error) {
	value, ok, err := downwardapi.MetadataField(pod, path)
	if !ok {
		err = fmt.Errorf("fieldRef.fieldPath %q is not supported in a volume", path)
	}
	return value, err
}

// containerResource is a request or limit of the container that a volume's resourceFieldRef has to name.
func containerResource(
	pod *corev1.Pod, ref *corev1.ResourceFieldSelector, allocatable corev1.ResourceList,
) (string, error) {
	container := downwardapi.Container(pod, ref.ContainerName)
	if container == nil {
		return "", fmt.Errorf("resourceFieldRef.containerName %q names no container of the pod", ref.ContainerName)
	}
	return downwardapi.ResourceField(pod, container, ref, allocatable)
}
