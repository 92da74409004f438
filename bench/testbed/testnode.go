package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/local"
)

// TestNode is a node with a namespace for the Pods of one sample and with what else the Pods need, which is the same for
// both kubelets and runs in this process.
type TestNode struct {
	Cluster   *Cluster
	Client    kubernetes.Interface
	Node      *Node
	Namespace string
	stops     []func() error
}

// StartTestNode starts the kubelet, and creates the namespace with one ConfigMap. The caller closes the node.
func StartTestNode(ctx context.Context, which Kubelet, settings *corev1.ConfigMap, config NodeConfig) (_ *TestNode, err error) {
	cluster, err := ClusterFromEnv()
	if err != nil {
		return nil, err
	}
	client, _, err := Client(cluster.Kubeconfig())
	if err != nil {
		return nil, err
	}
	s := &TestNode{Cluster: cluster, Client: client, Namespace: fmt.Sprint("bench-", os.Getpid())}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	_, err = client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.Namespace}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create namespace: %w", err)
	}
	if _, err := client.CoreV1().ConfigMaps(s.Namespace).Create(ctx, settings, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create ConfigMap: %w", err)
	}
	if s.Node, err = StartNode(ctx, cluster, which, client, config); err != nil {
		return nil, err
	}
	s.Defer(s.Node.Stop)
	return s, s.waitServiceAccount(ctx)
}

// waitServiceAccount waits for the namespace's service account, without which Pods are refused.
func (s *TestNode) waitServiceAccount(ctx context.Context) error {
	changes, err := s.Client.CoreV1().ServiceAccounts(s.Namespace).Watch(ctx,
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

// Defer registers a function that Close calls, the last one first.
func (s *TestNode) Defer(stop func() error) { s.stops = append(s.stops, stop) }

// RunInBackground calls run; Close cancels its context.
func (s *TestNode) RunInBackground(ctx context.Context, run func(context.Context) error) {
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- run(running) }()
	s.Defer(func() error {
		stop()
		return <-done
	})
}

// EnsureClass creates a StorageClass, unless an earlier sample did.
func (s *TestNode) EnsureClass(ctx context.Context, class *storagev1.StorageClass) error {
	_, err := s.Client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create class: %w", err)
	}
	return nil
}

// StartLocalProvisioner creates the class of local directories and runs its provisioner.
func (s *TestNode) StartLocalProvisioner(ctx context.Context) error {
	if err := s.EnsureClass(ctx, local.StorageClass()); err != nil {
		return err
	}
	provisioner, err := local.New(local.Deps{},
		local.Config{Root: filepath.Join(s.Cluster.Dir, "volumes"), NodeName: NodeName})
	if err != nil {
		return err
	}
	controller, err := provision.New(s.Client, local.ProvisionerName, provisioner, provision.LeaderElection(false))
	if err != nil {
		return err
	}
	s.RunInBackground(ctx, controller.RunContext)
	return nil
}

// Close stops everything in reverse order.
func (s *TestNode) Close() error {
	var errs []error
	for i := len(s.stops) - 1; i >= 0; i-- {
		errs = append(errs, s.stops[i]())
	}
	return errors.Join(errs...)
}
