package pod

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/bench/testbed"
	"github.com/berth-dev/berth/provision/local"
	"github.com/berth-dev/berth/up/containerd"
)

// plan describes the Pods of a sample.
type plan struct {
	count int
	// hostNetwork runs the Pods in the machine's own network.
	hostNetwork bool
	// together creates them all at once instead of one after the other.
	together bool
	// runtime is the runtime of the Pods; empty for the node's default, Berth's.
	runtime string
	// stateful gives each Pod a claim, and the scheduler selects its node.
	stateful bool
	// static has the kubelet give CPUs of their own, and requests is what each Pod's container requests.
	static   bool
	requests corev1.ResourceList
}

const configMap = "settings"

// runtimeClass is the class of containerd's own shim, which runs runc; [plan.runtime] names it.
func runtimeClass() *nodev1.RuntimeClass {
	return &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: containerd.RuntimeRunc}, Handler: containerd.RuntimeRunc}
}

// settings returns the ConfigMap that the Pods of a sample use.
func settings() *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: configMap}, Data: map[string]string{"key": "value"}}
}

// pod describes one Pod.
func (p plan) pod(c *testbed.Cluster, name string) *corev1.Pod {
	var grace int64 = 1
	no := false
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: testbed.NodeName, HostNetwork: p.hostNetwork, TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			Containers: []corev1.Container{{
				Name: "main", Image: c.Image, ImagePullPolicy: corev1.PullNever,
				VolumeMounts: []corev1.VolumeMount{
					{Name: "scratch", MountPath: "/scratch"}, {Name: "settings", MountPath: "/settings"},
				},
			}},
			Volumes: []corev1.Volume{
				{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "settings", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: configMap}}}},
			},
		},
	}
	if p.runtime != "" {
		pod.Spec.RuntimeClassName = &p.runtime
	}
	pod.Spec.Containers[0].Resources.Limits = p.requests
	if p.stateful {
		pod.Spec.NodeName = ""
		pod.Spec.Containers[0].VolumeMounts[0] = corev1.VolumeMount{Name: "data", MountPath: "/data"}
		pod.Spec.Volumes[0] = corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}
	}
	return pod
}

// claim is the claim of a stateful Pod.
func claim(name string) *corev1.PersistentVolumeClaim {
	class := local.StorageClass().Name
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}},
		},
	}
}

func podName(i int) string { return fmt.Sprint("pod-", i) }
