package volumes

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/bench/testbed"
	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/provision/local"
)

// kind is a set of volumes.
type kind int

const (
	none       kind = iota
	small           // emptyDir, ConfigMap and token
	stateful        // a claim of class berth-local, created with the Pod
	disk            // a claim of a class of disks, bound before
	diskAtOnce      // a claim of class berth-loop, created with the Pod
	many            // ten volumes that need no claim
)

// plan says which Pods a sample makes.
type plan struct {
	with kind
	// scheduled leaves the Pods to the scheduler.
	scheduled bool
}

const configMap = "settings"

// diskClass provisions disks at once, so that a Pod's start has only the rest.
func diskClass() *storagev1.StorageClass {
	class := csidriver.StorageClass()
	class.Name = "bench-loop"
	class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
	return class
}

func claim(name, class, size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
	}
}

// pod describes one Pod.
func (p plan) pod(c *testbed.Cluster, name string, volumes kind) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			HostNetwork: true, TerminationGracePeriodSeconds: ptr.To[int64](1), EnableServiceLinks: ptr.To(false),
			AutomountServiceAccountToken: ptr.To(volumes == small),
			Containers:                   []corev1.Container{{Name: "main", Image: c.Image, ImagePullPolicy: corev1.PullNever}},
		},
	}
	if !p.scheduled {
		pod.Spec.NodeName = testbed.NodeName
	}
	add := func(name string, source corev1.VolumeSource) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		main := &pod.Spec.Containers[0]
		main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	scratch := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	settings := corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: configMap}}}
	switch volumes {
	case small:
		add("scratch", scratch)
		add("settings", settings)
	case stateful, disk, diskAtOnce:
		add("data", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}})
	case many:
		for i := range perPod / 2 {
			add(fmt.Sprint("scratch-", i), scratch)
			add(fmt.Sprint("settings-", i), settings)
		}
	}
	return pod
}

// localClass is the class of stateful Pods.
func localClass() *storagev1.StorageClass { return local.StorageClass() }
