package envvars

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/downwardapi"
)

// FieldValue returns the value of a field of the Pod's metadata or spec that a fieldRef may name. It does not know the
// fields of status, whose values Build gets from its caller.
func FieldValue(pod *corev1.Pod, path string) (string, error) {
	if value, ok, err := downwardapi.MetadataField(pod, path); ok {
		return value, err
	}
	switch path {
	case "spec.nodeName", "spec.host":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "spec.restartPolicy":
		return string(pod.Spec.RestartPolicy), nil
	}
	return "", fmt.Errorf("read fieldPath %q: not a field that can be referred to", path)
}

// ResourceValue returns the value of a resourceFieldRef: a resource of the container, or of the container that the
// reference names.
func ResourceValue(pod *corev1.Pod, c *corev1.Container, ref *corev1.ResourceFieldSelector,
	allocatable corev1.ResourceList) (string, error) {
	if ref.ContainerName != "" && ref.ContainerName != c.Name {
		if c = downwardapi.Container(pod, ref.ContainerName); c == nil {
			return "", fmt.Errorf("read resourceFieldRef %q: pod has no container %q", ref.Resource, ref.ContainerName)
		}
	}
	return downwardapi.ResourceField(pod, c, ref, allocatable)
}
