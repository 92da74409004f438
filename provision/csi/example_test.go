package csi_test

import (
	"context"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/csi"
)

// How a program provisions by a CSI driver until ctx ends.
func Example() {
	_ = func(ctx context.Context, client kubernetes.Interface, objects dynamic.Interface) error {
		const name = "csi.berth.dev"
		p, err := csi.New(csi.Deps{Client: client, Dynamic: objects},
			csi.Config{Name: name, Socket: "/run/csi/" + name + ".sock"})
		if err != nil {
			return err
		}
		ctrl, err := provision.New(client, name, p)
		if err != nil {
			return err
		}
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return p.Start(ctx) })
		group.Go(func() error { return ctrl.RunContext(ctx) })
		return group.Wait()
	}
}
