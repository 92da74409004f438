package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	nodeName  = "bench"
	otherNode = "elsewhere" // of the Pods that the benchmark makes Ready itself
	namespace = "default"
	heartbeat = 10 * time.Second // of otherNode
	port      = 80

	firstName = "kubernetes." + namespace + suffix // the Service that each cluster has
	suffix    = ".svc.cluster.local."
)

// fixture is a cluster with a server to which all Services lead.
type fixture struct {
	client   kubernetes.Interface
	services *testbed.Services
	server   net.Listener // on the pod bridge
	closers  []func() error
}

// withFixture starts a cluster, calls measure, and stops the cluster.
func withFixture(ctx context.Context, s *harness.Sample, upstream bool, measure func(*fixture) error) error {
	f := &fixture{}
	err := f.start(ctx, s, upstream)
	if err == nil {
		err = measure(f)
	}
	return errors.Join(err, f.close())
}

func (f *fixture) start(ctx context.Context, s *harness.Sample, upstream bool) error {
	dir, err := os.MkdirTemp(s.Paths.Dir, "service-")
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	f.closeLater(func() error { return os.RemoveAll(dir) })
	up := testbed.Up{Bin: s.Paths.Bin, Dir: dir, Network: network, NodeName: nodeName, Services: !upstream}
	cluster, err := up.Start(ctx)
	if err != nil {
		return err
	}
	f.closeLater(cluster.Stop)
	if upstream {
		f.services, err = up.UpstreamServices(ctx)
	} else {
		f.services, err = up.OwnServices(cluster)
	}
	if err != nil {
		return err
	}
	f.closeLater(f.services.Stop)
	if f.client, _, err = testbed.Client(up.Kubeconfig()); err != nil {
		return err
	}
	if err := f.serve(ctx); err != nil {
		return err
	}
	if err := f.createNode(ctx); err != nil {
		return err
	}
	return f.waitDNS(ctx)
}

func (f *fixture) closeLater(closer func() error) { f.closers = append(f.closers, closer) }

func (f *fixture) close() error {
	var errs []error
	for i := len(f.closers) - 1; i >= 0; i-- {
		errs = append(errs, f.closers[i]())
	}
	return errors.Join(errs...)
}

// serve accepts connections on the pod bridge and closes them.
func (f *fixture) serve(ctx context.Context) error {
	host, _, err := net.SplitHostPort(f.services.DNS)
	if err != nil {
		return err
	}
	var config net.ListenConfig
	if f.server, err = config.Listen(ctx, "tcp", net.JoinHostPort(host, "0")); err != nil {
		return fmt.Errorf("start the server of all Services: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := f.server.Accept()
			if err != nil {
				return // it was closed
			}
			_ = conn.Close() // nothing was written
		}
	}()
	f.closeLater(func() error {
		err := f.server.Close()
		<-done
		return err
	})
	return nil
}

// createNode creates the Node of the Pods, so that they are not deleted as orphans. It has no kubelet.
func (f *fixture) createNode(ctx context.Context) error {
	node, err := f.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: otherNode}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create node: %w", err)
	}
	if err := f.reportNode(ctx, node.Name); err != nil {
		return err
	}
	f.keepNode(ctx, node.Name)
	return nil
}

// keepNode reports the Node ready until the fixture is closed: otherwise its Pods would be no longer Ready after a while.
func (f *fixture) keepNode(ctx context.Context, name string) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		beats := time.NewTicker(heartbeat)
		defer beats.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-beats.C:
				_ = f.reportNode(ctx, name) // the next one repairs it
			}
		}
	}()
	f.closeLater(func() error {
		cancel()
		<-ended
		return nil
	})
}

// reportNode sets the Node's condition Ready. It is a patch, because the cluster's controllers write to the Node as well.
func (f *fixture) reportNode(ctx context.Context, name string) error {
	status, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(), Reason: "Benchmark",
	}}}})
	if err != nil {
		return fmt.Errorf("make node ready: %w", err)
	}
	if _, err := f.client.CoreV1().Nodes().PatchStatus(ctx, name, status); err != nil {
		return fmt.Errorf("make node ready: %w", err)
	}
	return nil
}

func (f *fixture) waitDNS(ctx context.Context) (err error) {
	resolver, err := testbed.NewResolver(ctx, f.services.DNS)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resolver.Close()) }()
	_, err = resolver.WaitName(ctx, firstName)
	return err
}

// createService creates a Service of the Pods with the label app and returns its address.
func (f *fixture) createService(ctx context.Context, name, app string) (string, error) {
	service, err := f.client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": app},
			Ports:    []corev1.ServicePort{{Port: port, TargetPort: intstr.FromInt(f.server.Addr().(*net.TCPAddr).Port)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("create service: %w", err)
	}
	return net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(port)), nil
}

// createPod creates a Pod of the other Node, which is not Ready.
func (f *fixture) createPod(ctx context.Context, app string) (*corev1.Pod, error) {
	pod, err := f.client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: app, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			NodeName: otherNode, Containers: []corev1.Container{{Name: "main", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create Pod: %w", err)
	}
	return pod, nil
}

// makeReady makes the Pod Ready with the address of the server, and returns when the API server had done that.
func (f *fixture) makeReady(ctx context.Context, pod *corev1.Pod) (time.Time, error) {
	host, _, err := net.SplitHostPort(f.server.Addr().String())
	if err != nil {
		return time.Time{}, err
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIP, pod.Status.PodIPs = host, []corev1.PodIP{{IP: host}}
	pod.Status.Conditions = append(pod.Status.Conditions,
		corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
	if _, err := f.client.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return time.Time{}, fmt.Errorf("make Pod ready: %w", err)
	}
	return time.Now(), nil
}
