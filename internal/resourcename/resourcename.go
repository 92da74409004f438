package resourcename

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// HugePages returns the name of huge pages of the size in bytes: hugepages-SIZE.
func HugePages(bytes int64) corev1.ResourceName {
	return corev1.ResourceName(corev1.ResourceHugePagesPrefix + resource.NewQuantity(bytes, resource.BinarySI).String())
}

// HugePageSize returns the size in the name of huge pages, like "2Mi", and whether the resource are huge pages.
func HugePageSize(name corev1.ResourceName) (size string, is bool) {
	return strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// IsHugePages reports whether the resource are huge pages of one size.
func IsHugePages(name corev1.ResourceName) bool {
	_, is := HugePageSize(name)
	return is
}

// IsExtended reports whether the name is one of an extended resource: a device plugin, an administrator or a controller may provide it.
// Kubernetes keeps its own domain, and the prefix by which quotas name requests.
func IsExtended(name corev1.ResourceName) bool {
	if !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix) ||
		strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) {
		return false
	}
	return len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+string(name))) == 0
}
