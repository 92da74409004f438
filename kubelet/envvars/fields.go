package envvars

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// FieldValue returns the value of a field of the Pod's metadata or spec that a fieldRef may name. The fields of
// status are not in here: only the caller of Build knows them before they are written.
func FieldValue(pod *corev1.Pod, path string) (string, error) {
	if name, key, ok := subscript(path); ok {
		switch name {
		case "metadata.annotations":
			if faults := validation.IsQualifiedName(strings.ToLower(key)); len(faults) > 0 {
				return "", fmt.Errorf("read fieldPath %q: invalid key: %s", path, strings.Join(faults, "; "))
			}
			return pod.Annotations[key], nil
		case "metadata.labels":
			if faults := validation.IsQualifiedName(key); len(faults) > 0 {
				return "", fmt.Errorf("read fieldPath %q: invalid key: %s", path, strings.Join(faults, "; "))
			}
			return pod.Labels[key], nil
		}
		return "", fmt.Errorf("read fieldPath %q: only metadata.labels and metadata.annotations have keys", path)
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "spec.nodeName", "spec.host":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "spec.restartPolicy":
		return string(pod.Spec.RestartPolicy), nil
	}
	return "", fmt.Errorf("read fieldPath %q: not a field that can be referred to", path)
}

// subscript takes a path like metadata.labels['key'] apart.
func subscript(path string) (name, key string, ok bool) {
	inner, ok := strings.CutSuffix(path, "']")
	if !ok {
		return "", "", false
	}
	name, key, ok = strings.Cut(inner, "['")
	return name, key, ok && name != ""
}

// formatMap words labels or annotations as one line a key, quoted, in order of the keys.
func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, key+"="+strconv.Quote(m[key]))
	}
	return strings.Join(lines, "\n")
}

// ResourceValue returns what a resourceFieldRef says of the container: an amount in units of its divisor, rounded
// up. A limit of CPU, memory or ephemeral storage that is not set is the Pod's, or else what the node can give.
func ResourceValue(pod *corev1.Pod, c *corev1.Container, ref *corev1.ResourceFieldSelector,
	allocatable corev1.ResourceList) (string, error) {
	if ref.ContainerName != "" && ref.ContainerName != c.Name {
		other := findContainer(pod, ref.ContainerName)
		if other == nil {
			return "", fmt.Errorf("read resourceFieldRef %q: pod has no container %q", ref.Resource, ref.ContainerName)
		}
		c = other
	}
	kind, rest, _ := strings.Cut(ref.Resource, ".")
	name := corev1.ResourceName(rest)
	huge := strings.HasPrefix(rest, corev1.ResourceHugePagesPrefix)
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
	default:
		if !huge {
			return "", fmt.Errorf("read resourceFieldRef %q: not a resource that can be referred to", ref.Resource)
		}
	}
	var amount resource.Quantity
	switch kind {
	case "requests":
		amount = c.Resources.Requests[name]
	case "limits":
		amount = c.Resources.Limits[name]
		if amount.IsZero() && !huge {
			amount = allocatable[name]
			if own := pod.Spec.Resources; own != nil && name != corev1.ResourceEphemeralStorage {
				if limit, ok := own.Limits[name]; ok && !limit.IsZero() {
					amount = limit
				}
			}
		}
	default:
		return "", fmt.Errorf("read resourceFieldRef %q: begins with neither requests nor limits", ref.Resource)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	whole, unit := float64(amount.Value()), float64(divisor.Value())
	if name == corev1.ResourceCPU {
		whole, unit = float64(amount.MilliValue()), float64(divisor.MilliValue())
	}
	return strconv.FormatInt(int64(math.Ceil(whole/unit)), 10), nil
}

func findContainer(pod *corev1.Pod, name string) *corev1.Container {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == name {
			return &pod.Spec.Containers[i]
		}
	}
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return &pod.Spec.InitContainers[i]
		}
	}
	return nil
}
