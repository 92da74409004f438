package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-dev/berth/internal/listwatch"
	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/up/containerd"
	"github.com/berth-dev/berth/up/join"
)

// Member is what a machine that joined a cluster of `berth up` has instead of a control plane of its own. All fields are
// required.
type Member struct {
	// Info is what the cluster says about itself.
	Info join.Info
	// Node is a client with the node's identity, Network one with that of the node's kube-proxy, which the file
	// Layout.Kubeconfig("kube-proxy") has, too.
	Node, Network kubernetes.Interface
	// Connect sets the fields that follow. The node's process calls it once.
	Connect func(ctx context.Context, m *Member) error
	// RunKubelet runs the kubelet until its context ends, and stops its Pods then by KubeletParts.StopPods. It is called for
	// each start.
	RunKubelet func(ctx context.Context, parts KubeletParts) error
}

// KubeletParts are the parts of a machine that its kubelet works with.
type KubeletParts struct {
	Layout     Layout
	Timeline   *timeline.Recorder
	Logger     *slog.Logger
	Exits      *containerd.ExitRecords
	Collectors []prometheus.Collector
	// Processes serve the metrics of the machine's other processes, by their names.
	Processes map[string]http.Handler
	// TracerProvider makes the kubelet's spans; nil if the environment requests no traces.
	TracerProvider trace.TracerProvider
	// StopPods stops the Pods of an agent that has ended.
	StopPods func(a *agent.Agent) error
}

// ContainerLogsDir has a link to the log of each container, under the name that log collectors search.
func (l Layout) ContainerLogsDir() string {
	return filepath.Join(filepath.Dir(l.PodLogsDir()), filepath.Base(agent.ContainerLogsDir))
}

// newMemberKubelet returns the kubelet of a machine that joined a cluster.
func (u *components) newMemberKubelet() (runFunc, error) {
	c := u.cluster
	parts := KubeletParts{
		Layout: c.Layout, Timeline: c.timeline, Logger: c.logger, Exits: c.exitRecords, Collectors: []prometheus.Collector{c.stageMetrics},
		TracerProvider: u.tracerProvider(),
		StopPods:       func(a *agent.Agent) error { return u.stopPods(context.Background(), a) },
	}
	if c.runs(proxyName) {
		parts.Processes = map[string]http.Handler{proxyName: c.proxyMetrics()}
	}
	return func(ctx context.Context) error { return c.config.Member.RunKubelet(ctx, parts) }, nil
}

// nodeClient returns a client that can read this machine's Node and write its status.
func (c *Cluster) nodeClient() (kubernetes.Interface, error) {
	if c.config.Member != nil {
		return c.config.Member.Node, nil
	}
	return c.client("node")
}

// networkClient returns a client with the identity of this machine's kube-proxy, which can read all Nodes and Services.
func (c *Cluster) networkClient() (kubernetes.Interface, error) {
	if c.config.Member != nil {
		return c.config.Member.Network, nil
	}
	return c.client(proxyName)
}

// errNodeExists is the error for a Node that another machine has.
var errNodeExists = errors.New("another machine is this node")

// RegisterMember returns the parts of the cluster's Pod ranges that the control plane has assigned to the Node, with a comma between
// those of different families. It creates the Node if it does not exist. first is set at the machine's first start: then no other
// machine may be that node.
func RegisterMember(ctx context.Context, client kubernetes.Interface, name string, first bool) (string, error) {
	nodes := client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		// The kubelet completes it. Until then the API server has it marked as not ready, so that it gets no Pods.
		node, err = nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}},
			metav1.CreateOptions{})
	case err == nil && first && isReady(node):
		return "", fmt.Errorf("node %s: %w, and it is ready: choose another --node-name, or delete the Node if that machine "+
			"is gone", name, errNodeExists)
	}
	if err != nil {
		return "", fmt.Errorf("register node %s: %w", name, err)
	}
	if node.Spec.PodCIDR == "" {
		if node, err = waitPodCIDR(ctx, client, name); err != nil {
			return "", fmt.Errorf("wait for the Pod range of node %s, which the control plane assigns (its --pod-cidr may be "+
				"too small for another node): %w", name, err)
		}
	}
	pods := strings.Join(node.Spec.PodCIDRs, ",")
	if _, err := parseNetworks("spec.podCIDRs of node "+name, pods, 29, nodeRange6); err != nil {
		return "", err
	}
	return pods, nil
}

func waitPodCIDR(ctx context.Context, client kubernetes.Interface, name string) (*corev1.Node, error) {
	source := listwatch.Select(client.CoreV1().Nodes(), client, func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
	})
	event, err := watchtools.UntilWithSync(ctx, source, &corev1.Node{}, nil, func(event watch.Event) (bool, error) {
		node, ok := event.Object.(*corev1.Node)
		return ok && node.Name == name && node.Spec.PodCIDR != "", nil
	})
	if err != nil {
		return nil, err
	}
	return event.Object.(*corev1.Node), nil
}

func isReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
