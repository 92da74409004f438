package projected

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// podField is the value of a field that a downwardAPI volume may name.
func podField(pod *corev1.Pod, path string) (string, error) {
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return lines(pod.Labels), nil
	case "metadata.annotations":
		return lines(pod.Annotations), nil
	}
	if key, ok := subscript(path, "metadata.labels"); ok {
		return pod.Labels[key], nil
	}
	if key, ok := subscript(path, "metadata.annotations"); ok {
		return pod.Annotations[key], nil
	}
	return "", fmt.Errorf("fieldRef.fieldPath %q is not supported in a volume", path)
}

// subscript is KEY if the path is NAME['KEY'].
func subscript(path, name string) (key string, ok bool) {
	rest, ok := strings.CutPrefix(path, name+"['")
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, "']")
}

// lines is one line key="value" for each entry, in the order of the keys.
func lines(entries map[string]string) string {
	out := make([]string, 0, len(entries))
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		out = append(out, key+"="+strconv.Quote(entries[key]))
	}
	return strings.Join(out, "\n")
}

// containerResource is a request or limit of a container, as a multiple of the divisor, rounded up. A limit that the
// container does not have is what the node has to give.
func containerResource(
	pod *corev1.Pod, ref *corev1.ResourceFieldSelector, allocatable corev1.ResourceList,
) (string, error) {
	container := findContainer(pod, ref.ContainerName)
	if container == nil {
		return "", fmt.Errorf("resourceFieldRef.containerName %q names no container of the pod", ref.ContainerName)
	}
	kind, name, _ := strings.Cut(ref.Resource, ".")
	resourceName := corev1.ResourceName(name)
	known := resourceName == corev1.ResourceCPU || resourceName == corev1.ResourceMemory ||
		resourceName == corev1.ResourceEphemeralStorage
	if !known && !strings.HasPrefix(name, corev1.ResourceHugePagesPrefix) {
		return "", fmt.Errorf("resourceFieldRef.resource %q is not supported", ref.Resource)
	}
	var quantity resource.Quantity
	switch kind {
	case "requests":
		quantity = container.Resources.Requests[resourceName]
	case "limits":
		quantity = container.Resources.Limits[resourceName]
		if quantity.IsZero() && known {
			quantity = allocatable[resourceName]
		}
	default:
		return "", fmt.Errorf("resourceFieldRef.resource %q is not supported", ref.Resource)
	}
	if resourceName == corev1.ResourceCPU {
		divisor := int64(1000)
		if !ref.Divisor.IsZero() {
			divisor = ref.Divisor.MilliValue()
		}
		return roundUp(quantity.MilliValue(), divisor), nil
	}
	divisor := int64(1)
	if !ref.Divisor.IsZero() {
		divisor = ref.Divisor.Value()
	}
	return roundUp(quantity.Value(), divisor), nil
}

func roundUp(value, divisor int64) string {
	quotient := value / divisor
	if value%divisor > 0 {
		quotient++
	}
	return strconv.FormatInt(quotient, 10)
}

func findContainer(pod *corev1.Pod, name string) *corev1.Container {
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			if containers[i].Name == name {
				return &containers[i]
			}
		}
	}
	return nil
}
