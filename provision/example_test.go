package provision_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/provision"
)

// shareProvisioner is a whole provisioner: every volume is a directory of a share that all nodes mount.
type shareProvisioner struct{ share string }

func (p *shareProvisioner) Provision(o provision.VolumeOptions) (*corev1.PersistentVolume, error) {
	path := filepath.Join(p.share, o.PVName)
	if err := os.MkdirAll(path, 0o777); err != nil { // idempotent: a call before a crash may have created it
		return nil, err
	}
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.PVName},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: o.PersistentVolumeReclaimPolicy,
			AccessModes:                   o.PVC.Spec.AccessModes,
			MountOptions:                  o.MountOptions,
			Capacity:                      o.PVC.Spec.Resources.Requests,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: path},
			},
		},
	}, nil
}

func (p *shareProvisioner) Delete(pv *corev1.PersistentVolume) error {
	return os.RemoveAll(filepath.Join(p.share, pv.Name)) // idempotent too
}

// A Provisioner has two methods and is passed to New. In a cluster, the client comes from
// kubernetes.NewForConfig, and leader election stays on.
func ExampleNew() {
	share, err := os.MkdirTemp("", "share")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(share)
	cluster := newFakeAPI(newClass("fast"), withUID(newClaim("data", "fast"), "1234"))
	client := cluster.client(nil)

	ctrl, err := provision.New(client, "example.com/disk", &shareProvisioner{share: share},
		provision.LeaderElection(false))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	watch, err := client.CoreV1().PersistentVolumes().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() {
		event := <-watch.ResultChan()
		pv := event.Object.(*corev1.PersistentVolume)
		fmt.Println(event.Type, pv.Name, "for", pv.Spec.ClaimRef.Name)
		stop()
	}()
	if err := ctrl.RunContext(ctx); err != nil {
		fmt.Println(err)
	}
	// Output: ADDED pvc-1234 for data
}
