package replicaset

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trim drops what the controller never reads before it is cached: most of each Pod of the cluster.
func trim(obj any) (any, error) {
	if object, ok := obj.(metav1.Object); ok {
		object.SetManagedFields(nil)
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		trimPod(pod)
	}
	return obj, nil
}

func trimPod(pod *corev1.Pod) {
	annotations := pod.Annotations
	pod.Annotations = nil
	if cost, has := annotations[corev1.PodDeletionCost]; has {
		pod.Annotations = map[string]string{corev1.PodDeletionCost: cost}
	}
	spec := corev1.PodSpec{NodeName: pod.Spec.NodeName}
	for i := range pod.Spec.InitContainers { // which of them are sidecars
		c := &pod.Spec.InitContainers[i]
		spec.InitContainers = append(spec.InitContainers, corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy})
	}
	pod.Spec = spec
	pod.Status = corev1.PodStatus{
		Phase: pod.Status.Phase, Conditions: pod.Status.Conditions,
		InitContainerStatuses: restartsOnly(pod.Status.InitContainerStatuses), ContainerStatuses: restartsOnly(pod.Status.ContainerStatuses),
	}
}

func restartsOnly(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var kept []corev1.ContainerStatus
	for i := range statuses {
		kept = append(kept, corev1.ContainerStatus{Name: statuses[i].Name, RestartCount: statuses[i].RestartCount})
	}
	return kept
}
