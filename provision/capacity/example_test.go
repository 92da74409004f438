package capacity_test

import (
	"context"

	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/provision/capacity"
	"github.com/berth-dev/berth/provision/csi"
)

// How a program publishes the capacity of a CSI driver until ctx ends.
func Example() {
	_ = func(ctx context.Context, client kubernetes.Interface, p *csi.Provisioner) error {
		publisher, err := capacity.New(capacity.Deps{Client: client, Driver: p},
			capacity.Config{DriverName: "csi.berth.dev", Namespace: "kube-system"})
		if err != nil {
			return err
		}
		return publisher.Start(ctx)
	}
}
