package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/attachdetach/attacher"
	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/capacity"
	csiprovision "github.com/berth-dev/berth/provision/csi"
	"github.com/berth-dev/berth/provision/resize"
	"github.com/berth-dev/berth/timeline"
)

// csiSidecars says what is to be run for one CSI driver.
type csiSidecars struct {
	driver csiprovision.Config
	// attach has VolumeAttachments answered too, capacity has the driver's room published, resize has volumes made larger.
	attach, capacity, resize bool
	// timeline gets what the parts do; it may be nil.
	timeline *timeline.Recorder
	// capacityPeriod is how often the driver is asked for it again; zero means the default.
	capacityPeriod time.Duration
	// options of the provision controller.
	options []func(*provision.ProvisionController) error
}

// start makes the parts, each of which names its driver in the log, and which then run until their context ends. With
// leader election only those of the leader work.
func (p csiSidecars) start(config *rest.Config, logger *slog.Logger) (func(context.Context) error, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make an API client: %w", err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make an API client: %w", err)
	}
	provisioner, err := csiprovision.New(csiprovision.Deps{Client: client, Dynamic: objects, Logger: logger}, p.driver)
	if err != nil {
		return nil, err
	}
	options := append([]func(*provision.ProvisionController) error{
		provision.Logger(logger), provision.Timeline(p.timeline)}, p.options...)
	if p.capacity {
		options = append(options, provision.WithRunnable(func(ctx context.Context) error {
			return p.runCapacity(ctx, client, provisioner, logger)
		}))
	}
	if p.attach {
		options = append(options, provision.WithRunnable(func(ctx context.Context) error {
			return p.runAttacher(ctx, client, logger)
		}))
	}
	if p.resize {
		options = append(options, provision.WithRunnable(func(ctx context.Context) error {
			resizer, err := resize.New(resize.Deps{Client: client, Driver: provisioner, Timeline: p.timeline, Logger: logger},
				resize.Config{DriverName: p.driver.Name})
			if err != nil {
				return err
			}
			return resizer.Start(ctx)
		}))
	}
	controller, err := provision.New(client, p.driver.Name, provisioner, options...)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return provisioner.Start(ctx) })
		group.Go(func() error { return controller.RunContext(ctx) })
		return group.Wait()
	}, nil
}

// runCapacity tells the scheduler how much room the driver has. In a Pod (POD_NAME and POD_NAMESPACE say which, as the
// downward API can) the objects are in its namespace and go with what controls it; elsewhere they go with the driver.
func (p csiSidecars) runCapacity(
	ctx context.Context, client kubernetes.Interface, provisioner *csiprovision.Provisioner, logger *slog.Logger,
) error {
	config := capacity.Config{
		DriverName: p.driver.Name, Namespace: metav1.NamespaceSystem, Period: p.capacityPeriod}
	if namespace, pod := os.Getenv("POD_NAMESPACE"), os.Getenv("POD_NAME"); namespace != "" && pod != "" {
		owner, err := capacity.OwnerForPod(ctx, client, namespace, pod)
		if err != nil {
			return err
		}
		config.Namespace, config.Owner = namespace, owner
	}
	publisher, err := capacity.New(capacity.Deps{Client: client, Driver: provisioner, Logger: logger}, config)
	if err != nil {
		return err
	}
	return publisher.Start(ctx)
}

func (p csiSidecars) runAttacher(ctx context.Context, client kubernetes.Interface, logger *slog.Logger) error {
	conn, err := dialDriver(p.driver.Socket)
	if err != nil {
		return err
	}
	a, err := attacher.New(attacher.Deps{Client: client, Driver: csi.NewControllerClient(conn), Logger: logger},
		attacher.Config{DriverName: p.driver.Name})
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	return errors.Join(a.Start(ctx), conn.Close())
}

// dialDriver makes a connection to the driver, which need not be there yet. The caller closes it.
func dialDriver(address string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix://"+socketPath(address), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return conn, nil
}

// socketPath is the path in the usual ways to write a socket's address.
func socketPath(address string) string {
	return strings.TrimPrefix(strings.TrimPrefix(address, "unix:"), "//")
}

// csi is the provisioner, the attacher and the resizer of one CSI driver, given as NAME=SOCKET.
func (f controllersFlags) csi(driver string, config *rest.Config, recorder *timeline.Recorder) (func(context.Context) error, error) {
	name, socket, ok := strings.Cut(driver, "=")
	if !ok || name == "" || socket == "" {
		return nil, usageError{fmt.Errorf("--csi-driver %q: say NAME=SOCKET", driver)}
	}
	parts := csiSidecars{
		driver: csiprovision.Config{Name: name, Socket: socket}, attach: f.attach, capacity: f.capacity,
		resize: f.resize, timeline: recorder,
		options: []func(*provision.ProvisionController) error{provision.LeaderElection(f.leaderElection)},
	}
	return parts.start(config, stderrLogger(f.verbosity))
}
