package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/attachdetach"
	"github.com/berth-dev/berth/attachdetach/attacher"
	"github.com/berth-dev/berth/bench/testbed"
	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/csidriver/registrar"
	"github.com/berth-dev/berth/provision"
	csiprovision "github.com/berth-dev/berth/provision/csi"
)

// fixture is where a sample's Pods are, with the controllers that their volumes need.
type fixture struct {
	*testbed.TestNode
	plan  plan
	meter *callMeter // nil without disks
}

func newFixture(ctx context.Context, which testbed.Kubelet, p plan) (*fixture, error) {
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: configMap}, Data: map[string]string{"key": "value"}}
	base, err := testbed.StartTestNode(ctx, which, settings, testbed.NodeConfig{})
	if err != nil {
		return nil, err
	}
	s := &fixture{TestNode: base, plan: p}
	if err := s.startProvisioners(ctx, which); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *fixture) startProvisioners(ctx context.Context, which testbed.Kubelet) error {
	switch s.plan.with {
	case stateful:
		return s.StartLocalProvisioner(ctx)
	case disk, diskAtOnce:
		return s.startDiskDriver(ctx, which)
	}
	return nil
}

// startDiskDriver runs the driver behind a meter, and its provisioner, its attacher and the attach/detach controller.
func (s *fixture) startDiskDriver(ctx context.Context, which testbed.Kubelet) (err error) {
	for _, class := range []*storagev1.StorageClass{diskClass(), csidriver.StorageClass()} {
		if err := s.EnsureClass(ctx, class); err != nil {
			return err
		}
	}
	object := csidriver.CSIDriver()
	object.Spec.StorageCapacity = ptr.To(false) // nothing publishes capacities here, without which Pods are not scheduled
	_, err = s.Client.StorageV1().CSIDrivers().Create(ctx, object, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create CSIDriver: %w", err)
	}
	dir, err := os.MkdirTemp("", "bench") // short: a socket's path is bounded
	if err != nil {
		return err
	}
	s.Defer(func() error { return os.RemoveAll(dir) })
	driver, err := csidriver.New(csidriver.Deps{}, csidriver.Config{
		Endpoint: filepath.Join(dir, "driver"), NodeID: testbed.NodeName, Root: filepath.Join(s.Cluster.Dir, "disks"), Thin: true})
	if err != nil {
		return err
	}
	s.RunInBackground(ctx, driver.Start)
	if s.meter, err = startMeter(filepath.Join(dir, "meter"), filepath.Join(dir, "driver")); err != nil {
		return err
	}
	s.Defer(s.meter.stop)
	s.RunInBackground(ctx, func(ctx context.Context) error {
		return registrar.Serve(ctx, registrar.Deps{}, registrar.Config{
			Registry: filepath.Join(s.Cluster.Dir, "kubelet-"+string(which), "plugins_registry"),
			Driver:   csidriver.Name, Endpoint: s.meter.socket})
	})
	return s.startDiskControllers(ctx)
}

// startDiskControllers runs the controllers of disks.
func (s *fixture) startDiskControllers(ctx context.Context) error {
	provisioner, err := csiprovision.New(csiprovision.Deps{Client: s.Client},
		csiprovision.Config{Name: csidriver.Name, Socket: s.meter.socket, DefaultFSType: csidriver.DefaultFSType})
	if err != nil {
		return err
	}
	controller, err := provision.New(s.Client, csidriver.Name, provisioner, provision.LeaderElection(false))
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+s.meter.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	s.Defer(conn.Close)
	attach, err := attacher.New(attacher.Deps{Client: s.Client, Driver: csi.NewControllerClient(conn)},
		attacher.Config{DriverName: csidriver.Name})
	if err != nil {
		return err
	}
	attachments, err := attachdetach.New(attachdetach.Deps{Client: s.Client}, attachdetach.Config{})
	if err != nil {
		return err
	}
	s.RunInBackground(ctx, provisioner.Start)
	s.RunInBackground(ctx, controller.RunContext)
	s.RunInBackground(ctx, attach.Start)
	s.RunInBackground(ctx, attachments.Start)
	return nil
}

// until waits for an event that satisfies the condition and returns its time.
func until(ctx context.Context, changes watcher, satisfied func(event) bool) (time.Time, error) {
	defer changes.Stop()
	for {
		select {
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		case one, open := <-changes.ResultChan():
			now := time.Now()
			if !open {
				return now, errors.New("the watch ended")
			}
			if satisfied(one) {
				return now, nil
			}
		}
	}
}
