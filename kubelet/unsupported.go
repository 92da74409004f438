package kubelet

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// ReasonUnsupported is the status reason of a Pod that asks for something this node agent does not do.
const ReasonUnsupported = "UnsupportedField"

// unsupported lists what is refused beside volumes, of which the volume manager knows better: each rule returns the
// first field of the Pod that it finds, or "".
var unsupported = []func(pod *corev1.Pod) (field, why string){
	func(pod *corev1.Pod) (string, string) {
		return when(len(pod.Spec.ResourceClaims) > 0, "spec.resourceClaims", "dynamic resource allocation")
	},
	containerFields,
}

// refuse names the first field of the Pod that is not supported, or returns "".
func refuse(pod *corev1.Pod) string {
	for _, rule := range unsupported {
		if field, why := rule(pod); field != "" {
			return fmt.Sprintf("%s: %s is not supported by this node", field, why)
		}
	}
	return ""
}

func containerFields(pod *corev1.Pod) (string, string) {
	check := func(list string, i int, c *corev1.Container) (string, string) {
		path := fmt.Sprintf("spec.%s[%d]", list, i)
		return when(len(c.Resources.Claims) > 0, path+".resources.claims", "dynamic resource allocation")
	}
	for i := range pod.Spec.InitContainers {
		if field, why := check("initContainers", i, &pod.Spec.InitContainers[i]); field != "" {
			return field, why
		}
	}
	for i := range pod.Spec.Containers {
		if field, why := check("containers", i, &pod.Spec.Containers[i]); field != "" {
			return field, why
		}
	}
	return "", ""
}

func when(found bool, field, why string) (string, string) {
	if !found {
		return "", ""
	}
	return field, why
}
