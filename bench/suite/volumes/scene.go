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
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/attachdetach"
	"github.com/berth-dev/berth/attachdetach/attacher"
	"github.com/berth-dev/berth/bench/rig"
	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/csidriver/registrar"
	"github.com/berth-dev/berth/provision"
	csiprovision "github.com/berth-dev/berth/provision/csi"
	"github.com/berth-dev/berth/provision/local"
)

// scene is a node with a namespace of the sample's own, and the controllers that its volumes need: the same for both
// kubelets, in this process.
type scene struct {
	cluster   *rig.Cluster
	client    kubernetes.Interface
	node      *rig.Node
	namespace string
	plan      plan
	meter     *meter // nil without disks
	stops     []func() error
}

func open(ctx context.Context, which rig.Kubelet, p plan) (_ *scene, err error) {
	cluster, err := rig.ClusterFromEnv()
	if err != nil {
		return nil, err
	}
	client, _, err := rig.Client(cluster.Kubeconfig())
	if err != nil {
		return nil, err
	}
	s := &scene{cluster: cluster, client: client, plan: p, namespace: fmt.Sprint("bench-", os.Getpid())}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	core := client.CoreV1()
	_, err = core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}},
		metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create namespace: %w", err)
	}
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: configMap}, Data: map[string]string{"key": "value"}}
	if _, err := core.ConfigMaps(s.namespace).Create(ctx, settings, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create ConfigMap: %w", err)
	}
	if s.node, err = rig.StartNode(ctx, cluster, which, client); err != nil {
		return nil, err
	}
	s.stops = append(s.stops, s.node.Stop)
	if err := s.provide(ctx, which); err != nil {
		return nil, err
	}
	return s, s.untilAccount(ctx)
}

// untilAccount waits for the namespace's service account, without which Pods are refused.
func (s *scene) untilAccount(ctx context.Context) error {
	changes, err := s.client.CoreV1().ServiceAccounts(s.namespace).Watch(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=default"})
	if err != nil {
		return fmt.Errorf("watch service accounts: %w", err)
	}
	defer changes.Stop()
	if _, open := <-changes.ResultChan(); !open {
		return fmt.Errorf("the watch of service accounts ended: %w", ctx.Err())
	}
	return nil
}

// keep runs something until the scene closes.
func (s *scene) keep(ctx context.Context, run func(context.Context) error) {
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- run(running) }()
	s.stops = append(s.stops, func() error {
		stop()
		return <-done
	})
}

func (s *scene) class(ctx context.Context, class *storagev1.StorageClass) error {
	_, err := s.client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create class: %w", err)
	}
	return nil
}

func (s *scene) provide(ctx context.Context, which rig.Kubelet) error {
	switch s.plan.with {
	case stateful:
		return s.provideLocal(ctx)
	case disk:
		return s.provideDisks(ctx, which)
	}
	return nil
}

func (s *scene) provideLocal(ctx context.Context) error {
	if err := s.class(ctx, localClass()); err != nil {
		return err
	}
	provisioner, err := local.New(local.Deps{},
		local.Config{Root: filepath.Join(s.cluster.Dir, "volumes"), NodeName: rig.NodeName})
	if err != nil {
		return err
	}
	controller, err := provision.New(s.client, local.ProvisionerName, provisioner, provision.LeaderElection(false))
	if err != nil {
		return err
	}
	s.keep(ctx, controller.RunContext)
	return nil
}

// provideDisks runs the driver behind a meter, and its provisioner, its attacher and the attach/detach controller.
func (s *scene) provideDisks(ctx context.Context, which rig.Kubelet) (err error) {
	if err := s.class(ctx, diskClass()); err != nil {
		return err
	}
	_, err = s.client.StorageV1().CSIDrivers().Create(ctx, csidriver.CSIDriver(), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create CSIDriver: %w", err)
	}
	dir, err := os.MkdirTemp("", "bench") // short: a socket's path is bounded
	if err != nil {
		return err
	}
	s.stops = append(s.stops, func() error { return os.RemoveAll(dir) })
	driver, err := csidriver.New(csidriver.Deps{}, csidriver.Config{
		Endpoint: filepath.Join(dir, "driver"), NodeID: rig.NodeName, Root: filepath.Join(s.cluster.Dir, "disks"), Thin: true})
	if err != nil {
		return err
	}
	s.keep(ctx, driver.Start)
	if s.meter, err = startMeter(filepath.Join(dir, "meter"), filepath.Join(dir, "driver")); err != nil {
		return err
	}
	s.stops = append(s.stops, s.meter.stop)
	s.keep(ctx, func(ctx context.Context) error {
		return registrar.Serve(ctx, registrar.Config{
			Registry: filepath.Join(s.cluster.Dir, "kubelet-"+string(which), "plugins_registry"),
			Driver:   csidriver.Name, Endpoint: s.meter.socket}, nil)
	})
	return s.control(ctx)
}

// control runs the controllers of disks.
func (s *scene) control(ctx context.Context) error {
	provisioner, err := csiprovision.New(csiprovision.Deps{Client: s.client},
		csiprovision.Config{Name: csidriver.Name, Socket: s.meter.socket, DefaultFSType: csidriver.DefaultFSType})
	if err != nil {
		return err
	}
	controller, err := provision.New(s.client, csidriver.Name, provisioner, provision.LeaderElection(false))
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("unix://"+s.meter.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	s.stops = append(s.stops, conn.Close)
	attach, err := attacher.New(attacher.Deps{Client: s.client, Driver: csi.NewControllerClient(conn)},
		attacher.Config{DriverName: csidriver.Name})
	if err != nil {
		return err
	}
	attachments, err := attachdetach.New(attachdetach.Deps{Client: s.client}, attachdetach.Config{})
	if err != nil {
		return err
	}
	s.keep(ctx, provisioner.Start)
	s.keep(ctx, controller.RunContext)
	s.keep(ctx, attach.Start)
	s.keep(ctx, attachments.Start)
	return nil
}

// close takes the scene down, the last first.
func (s *scene) close() error {
	var errs []error
	for i := len(s.stops) - 1; i >= 0; i-- {
		errs = append(errs, s.stops[i]())
	}
	return errors.Join(errs...)
}

// until watches one object's list until one of the events satisfies, and tells when that was.
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
