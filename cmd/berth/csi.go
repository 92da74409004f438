package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/attachdetach/attacher"
	"github.com/berth-dev/berth/provision"
	csiprovision "github.com/berth-dev/berth/provision/csi"
	"github.com/berth-dev/berth/timeline"
)

// csi is the provisioner and the attacher of one CSI driver, given as NAME=SOCKET.
func (f controllersFlags) csi(driver string, config *rest.Config, rec *timeline.Recorder) (func(context.Context) error, error) {
	name, socket, ok := strings.Cut(driver, "=")
	if !ok || name == "" || socket == "" {
		return nil, usageError{fmt.Errorf("--csi-driver %q: say NAME=SOCKET", driver)}
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make an API client: %w", err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make an API client: %w", err)
	}
	logger := stderrLogger(f.verbosity).With("driver", name)
	provisioner, err := csiprovision.New(csiprovision.Deps{Client: client, Dynamic: objects, Logger: logger},
		csiprovision.Config{Name: name, Socket: socket})
	if err != nil {
		return nil, err
	}
	controller, err := provision.New(client, name, provisioner, provision.LeaderElection(f.leaderElection),
		provision.Timeline(rec), provision.Logger(logger))
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("unix://"+strings.TrimPrefix(socket, "unix://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	a, err := attacher.New(attacher.Deps{Client: client, Driver: csi.NewControllerClient(conn), Logger: logger},
		attacher.Config{DriverName: name})
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return provisioner.Start(ctx) })
		group.Go(func() error { return controller.RunContext(ctx) })
		group.Go(func() error { return a.Start(ctx) })
		return errors.Join(group.Wait(), conn.Close())
	}, nil
}
