package eviction

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// Reason is the reason of the status and of the event of an evicted Pod, and of one that is rejected under pressure.
const Reason = "Evicted"

// The annotations of the event of an evicted Pod, which programs read.
const (
	annotationContainers      = "offending_containers"
	annotationContainersUsage = "offending_containers_usage"
	annotationPod             = "offending_pod"
	annotationPodUsage        = "offending_pod_usage"
	annotationResource        = "starved_resource"
)

// message returns why a Pod is evicted for a threshold, in the words of Kubernetes, and the annotations of the event.
func message(t Threshold, o Observation, pod *corev1.Pod, stats *statsapi.PodStats) (string, map[string]string) {
	name := t.Signal.resource()
	var text strings.Builder
	fmt.Fprintf(&text, "The node was low on resource: %s. Threshold quantity: %s, available: %s. ", name,
		thresholdQuantity(t, o), t.Signal.quantity(o.Available))
	annotations := map[string]string{annotationResource: string(name)}
	if stats == nil {
		return text.String(), annotations
	}
	const larger = "%s %s was using %s, request is %s, has larger consumption of %s. "
	if r := pod.Spec.Resources; name == corev1.ResourceMemory && r != nil && stats.Memory != nil {
		if request, ok := r.Requests[name]; ok {
			used := t.Signal.quantity(number(stats.Memory.WorkingSetBytes))
			fmt.Fprintf(&text, larger, "Pod", pod.Name, used, &request, name)
			annotations[annotationPod], annotations[annotationPodUsage] = pod.Name, used.String()
		}
	}
	var names, usage []string
	for i := range stats.Containers {
		c := findContainer(pod, stats.Containers[i].Name)
		used, known := containerUsage(name, &stats.Containers[i])
		if c == nil || !known {
			continue
		}
		request := c.Resources.Requests[name]
		if used <= request.Value() {
			continue
		}
		quantity := t.Signal.quantity(used)
		fmt.Fprintf(&text, larger, "Container", c.Name, quantity, &request, name)
		names, usage = append(names, c.Name), append(usage, quantity.String())
	}
	annotations[annotationContainers], annotations[annotationContainersUsage] = strings.Join(names, ","), strings.Join(usage, ",")
	return text.String(), annotations
}

// thresholdQuantity returns the threshold's amount as it is configured, or computed from a percentage.
func thresholdQuantity(t Threshold, o Observation) string {
	if t.Value.Fraction > 0 {
		return t.Signal.quantity(t.Value.of(o.Capacity)).String()
	}
	return t.Value.Amount.String()
}

// findContainer returns the container or init container of that name. Ephemeral containers request nothing, and are not named.
func findContainer(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// containerUsage returns what a container uses of a resource that containers can request, false if it is not known.
func containerUsage(name corev1.ResourceName, stats *statsapi.ContainerStats) (int64, bool) {
	switch {
	case name == corev1.ResourceMemory && stats.Memory != nil && stats.Memory.WorkingSetBytes != nil:
		return number(stats.Memory.WorkingSetBytes), true
	case name == corev1.ResourceEphemeralStorage && stats.Rootfs != nil && stats.Logs != nil:
		return number(stats.Rootfs.UsedBytes) + number(stats.Logs.UsedBytes), true
	}
	return 0, false
}
