package up

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/berth-dev/berth/attachdetach/attacher"
	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/csidriver/registrar"
	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/capacity"
	csiprovision "github.com/berth-dev/berth/provision/csi"
	"github.com/berth-dev/berth/provision/resize"
	"github.com/berth-dev/berth/version"
)

func (l Layout) csiSocket() string { return filepath.Join(l.RunDir, "csi.sock") }

// disksDir holds the disks of class berth-loop.
func (l Layout) disksDir() string { return filepath.Join(l.DataDir, "disks") }

// newCSIDriver serves disks of this machine, and tells the kubelet.
func (c *Cluster) newCSIDriver() (runFunc, error) {
	config := csidriver.Config{Endpoint: c.csiSocket(), NodeID: c.NodeName, Root: c.disksDir(), Version: version.Berth}
	registration := registrar.Config{
		Registry: filepath.Join(c.KubeletDir(), "plugins_registry"), Driver: csidriver.Name, Endpoint: c.csiSocket(),
	}
	return func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return csidriver.Serve(ctx, csidriver.Deps{Logger: c.logger}, config) })
		group.Go(func() error { return registrar.Serve(ctx, registration, c.logger) })
		return group.Wait()
	}, nil
}

// newCSIProvisioner makes the volumes of class berth-loop, and makes them larger.
func (c *Cluster) newCSIProvisioner() (runFunc, error) {
	client, err := c.client("provision")
	if err != nil {
		return nil, err
	}
	objects, err := c.dynamicClient("provision")
	if err != nil {
		return nil, err
	}
	provisioner, err := csiprovision.New(csiprovision.Deps{Client: client, Dynamic: objects, Logger: c.logger},
		csiprovision.Config{Name: csidriver.Name, Socket: c.csiSocket(), DefaultFSType: csidriver.DefaultFSType})
	if err != nil {
		return nil, err
	}
	controller, err := provision.New(client, csidriver.Name, provisioner, provision.LeaderElection(false),
		provision.Timeline(c.timeline), provision.Logger(c.logger))
	if err != nil {
		return nil, err
	}
	publisher, err := capacity.New(capacity.Deps{Client: client, Driver: provisioner, Logger: c.logger, Clock: c.clock},
		capacity.Config{DriverName: csidriver.Name, Namespace: metav1.NamespaceSystem})
	if err != nil {
		return nil, err
	}
	resizer, err := resize.New(resize.Deps{
		Client: client, Driver: provisioner, Timeline: c.timeline, Logger: c.logger, Clock: c.clock,
	}, resize.Config{DriverName: csidriver.Name})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return provisioner.Start(ctx) })
		group.Go(func() error { return controller.RunContext(ctx) })
		group.Go(func() error { return publisher.Start(ctx) })
		group.Go(func() error { return resizer.Start(ctx) })
		return group.Wait()
	}, nil
}

// dynamicClient reads objects whose kinds only some clusters have, with the identity of one part.
func (c *Cluster) dynamicClient(part string) (dynamic.Interface, error) {
	config, err := clientConfig(c.Kubeconfig(part))
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make an API client of %s: %w", part, err)
	}
	return objects, nil
}

// newCSIAttacher publishes the volumes of class berth-loop to the node.
func (c *Cluster) newCSIAttacher() (runFunc, error) {
	client, err := c.client("attacher")
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("unix://"+c.csiSocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to the csi driver: %w", err)
	}
	a, err := attacher.New(attacher.Deps{Client: client, Driver: csi.NewControllerClient(conn), Logger: c.logger},
		attacher.Config{DriverName: csidriver.Name})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return func(ctx context.Context) error { return errors.Join(a.Start(ctx), conn.Close()) }, nil
}

// detachDisks frees the loop devices of this cluster's disks, which nobody uses once its mounts are gone.
func (l Layout) detachDisks() error {
	if err := loopdev.New().DetachBelow(l.disksDir()); err != nil {
		return fmt.Errorf("free the cluster's disks: %w", err)
	}
	return nil
}
