package admission

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// ReasonUnsupported is the status reason of a Pod with a field that this node does not support.
const ReasonUnsupported = "UnsupportedField"

// unsupportedField names the first field of the Pod that is not supported, or returns "". Volumes are checked by the
// volume manager.
func unsupportedField(pod *corev1.Pod) string {
	field := ""
	switch {
	case len(pod.Spec.ResourceClaims) > 0:
		field = "spec.resourceClaims"
	case pod.Status.ExtendedResourceClaimStatus != nil:
		// The scheduler has allocated devices for an extended resource: without them the containers would start all the same.
		field = "status.extendedResourceClaimStatus"
	}
	for _, list := range []struct {
		name       string
		containers []corev1.Container
	}{{"initContainers", pod.Spec.InitContainers}, {"containers", pod.Spec.Containers}} {
		for i := range list.containers {
			if field == "" && len(list.containers[i].Resources.Claims) > 0 {
				field = fmt.Sprintf("spec.%s[%d].resources.claims", list.name, i)
			}
		}
	}
	if field == "" {
		return ""
	}
	return field + ": dynamic resource allocation is not supported by this node"
}
