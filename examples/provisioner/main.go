// Command provisioner provisions directories of a share that all nodes mount.
package main

import (
	"context"
	"log"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/provision"
)

type share string

func (s share) Provision(o provision.VolumeOptions) (*corev1.PersistentVolume, error) {
	path := filepath.Join(string(s), o.PVName)
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: o.PVName}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeReclaimPolicy: o.PersistentVolumeReclaimPolicy,
		AccessModes:                   o.PVC.Spec.AccessModes,
		Capacity:                      o.PVC.Spec.Resources.Requests,
		PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}},
	}}, os.MkdirAll(path, 0o777) // a call before a crash may have created it
}

func (s share) Delete(pv *corev1.PersistentVolume) error {
	return os.RemoveAll(filepath.Join(string(s), pv.Name))
}

func main() { // in a Pod, or with KUBECONFIG set
	if len(os.Args) != 2 {
		log.Fatal("usage: provisioner DIRECTORY")
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		log.Fatal(err)
	}
	controller, err := provision.New(kubernetes.NewForConfigOrDie(config), "example.com/share", share(os.Args[1]))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(controller.RunContext(context.Background()))
}
