// Package downwardapi evaluates fieldRef and resourceFieldRef of the Pod API, for environment variables and for volumes:
// fields of the Pod's metadata, and resources of its containers.
package downwardapi

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

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/resourcename"
)

// MetadataField returns the value of a field of the Pod's metadata. ok is false if the path is none.
func MetadataField(pod *corev1.Pod, path string) (value string, ok bool, err error) {
	if name, key, ok := splitSubscript(path); ok {
		switch name {
		case "metadata.annotations":
			return mapEntry(path, pod.Annotations, key, strings.ToLower(key))
		case "metadata.labels":
			return mapEntry(path, pod.Labels, key, key)
		}
		return "", true, fmt.Errorf("read fieldPath %q: only metadata.labels and metadata.annotations have keys", path)
	}
	switch path {
	case "metadata.name":
		return pod.Name, true, nil
	case "metadata.namespace":
		return pod.Namespace, true, nil
	case "metadata.uid":
		return string(pod.UID), true, nil
	case "metadata.labels":
		return formatMap(pod.Labels), true, nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), true, nil
	}
	return "", false, nil
}

// mapEntry is the entry of a key that has to be a qualified name, in the spelling that is judged.
func mapEntry(path string, entries map[string]string, key, judged string) (string, bool, error) {
	if faults := validation.IsQualifiedName(judged); len(faults) > 0 {
		return "", true, fmt.Errorf("read fieldPath %q: invalid key: %s", path, strings.Join(faults, "; "))
	}
	return entries[key], true, nil
}

// splitSubscript takes a path like metadata.labels['key'] apart.
func splitSubscript(path string) (name, key string, ok bool) {
	inner, ok := strings.CutSuffix(path, "']")
	if !ok {
		return "", "", false
	}
	name, key, ok = strings.Cut(inner, "['")
	return name, key, ok && name != ""
}

// formatMap words labels or annotations as one line key="value" each, in order of the keys.
func formatMap(entries map[string]string) string {
	out := make([]string, 0, len(entries))
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		out = append(out, key+"="+strconv.Quote(entries[key]))
	}
	return strings.Join(out, "\n")
}

// ResourceField returns what a resourceFieldRef says of the container: an amount in units of its divisor, rounded up. A limit of
// CPU, memory or ephemeral storage that is not set is the Pod's, or else what the node can give.
func ResourceField(pod *corev1.Pod, c *corev1.Container, ref *corev1.ResourceFieldSelector, allocatable corev1.ResourceList) (string, error) {
	kind, rest, _ := strings.Cut(ref.Resource, ".")
	name := corev1.ResourceName(rest)
	known := name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage
	if !known && !resourcename.IsHugePages(name) {
		return "", fmt.Errorf("read resourceFieldRef %q: not a resource that can be referred to", ref.Resource)
	}
	var amount resource.Quantity
	switch kind {
	case "requests":
		amount = c.Resources.Requests[name]
	case "limits":
		amount = c.Resources.Limits[name]
		if amount.IsZero() && known {
			amount = defaultLimit(pod, name, allocatable)
		}
	default:
		return "", fmt.Errorf("read resourceFieldRef %q: begins with neither requests nor limits", ref.Resource)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if divisor.Sign() < 0 {
		return "", fmt.Errorf("read resourceFieldRef %q: the divisor %s is negative", ref.Resource, divisor.String())
	}
	if name == corev1.ResourceCPU {
		return roundUp(inUnits(amount, resource.Milli), inUnits(divisor, resource.Milli)), nil
	}
	return roundUp(inUnits(amount, 0), inUnits(divisor, 0)), nil
}

// defaultLimit is the limit of a container that has none of its own.
func defaultLimit(pod *corev1.Pod, name corev1.ResourceName, allocatable corev1.ResourceList) resource.Quantity {
	if own := pod.Spec.Resources; own != nil && name != corev1.ResourceEphemeralStorage {
		if limit, ok := own.Limits[name]; ok && !limit.IsZero() {
			return limit
		}
	}
	return allocatable[name]
}

// inUnits returns an amount in units of a power of ten, and the most of them for one that has more: ScaledValue returns any number for it,
// also 0.
func inUnits(amount resource.Quantity, scale resource.Scale) int64 {
	if amount.Cmp(*resource.NewScaledQuantity(math.MaxInt64, scale)) > 0 {
		return math.MaxInt64
	}
	return amount.ScaledValue(scale)
}

func roundUp(amount, divisor int64) string {
	quotient := amount / divisor
	if amount%divisor > 0 {
		quotient++
	}
	return strconv.FormatInt(quotient, 10)
}

// Container returns the container or init container of that name, nil if the Pod has none.
func Container(pod *corev1.Pod, name string) *corev1.Container {
	container, kind := podutil.FindContainer(&pod.Spec, name)
	if kind == podutil.Ephemeral {
		return nil
	}
	return container
}
