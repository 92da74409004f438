package resourcemetrics

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controlplane/contain"
)

const (
	// kubeletTimeout bounds both readings of one kubelet: a node that hangs delays the others' metrics by no more.
	kubeletTimeout = 5 * time.Second
	// maxSummary bounds what a kubelet may send, in bytes: some 1 KiB for each container.
	maxSummary = 64 << 20
)

// kubelets reads the usage of nodes. It is safe for concurrent use.
type kubelets struct {
	connections kubeletclient.ConnectionInfoGetter
	clock       clock.Clock

	mu       sync.Mutex // guards the rest
	samplers map[types.UID]*sampler
}

func newKubelets(connections kubeletclient.ConnectionInfoGetter, clock clock.Clock) *kubelets {
	return &kubelets{connections: connections, clock: clock, samplers: make(map[types.UID]*sampler)}
}

// result is the usage of a node, or why it is unknown.
type result struct {
	usage *nodeUsage
	err   error
}

// sample reads the usage of the nodes, of all at the same time.
func (k *kubelets) sample(ctx context.Context, nodes []*corev1.Node) map[string]result {
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	var mu sync.Mutex
	var group sync.WaitGroup
	results := make(map[string]result, len(nodes))
	for _, node := range nodes {
		group.Go(func() {
			var r result
			if isReady(node) {
				r.err = contain.Do("resourcemetrics.sample", func() (err error) {
					r.usage, err = k.sampler(node).sample(ctx)
					return err
				})
			} else {
				r.err = fmt.Errorf("node %q is not Ready", node.Name)
			}
			mu.Lock()
			defer mu.Unlock()
			results[node.Name] = r
		})
	}
	group.Wait()
	return results
}

// forgetAllBut forgets the readings of nodes that are gone.
func (k *kubelets) forgetAllBut(nodes []*corev1.Node) {
	current := sets.New[types.UID]()
	for _, node := range nodes {
		current.Insert(node.UID)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for uid := range k.samplers {
		if !current.Has(uid) {
			delete(k.samplers, uid)
		}
	}
}

func (k *kubelets) sampler(node *corev1.Node) *sampler {
	k.mu.Lock()
	defer k.mu.Unlock()
	s, ok := k.samplers[node.UID]
	if !ok {
		name := types.NodeName(node.Name)
		s = newSampler(func(ctx context.Context) (*reading, error) { return k.read(ctx, name) }, k.clock)
		k.samplers[node.UID] = s
	}
	return s
}

// read requests CPU and memory from the kubelet of a node.
func (k *kubelets) read(ctx context.Context, node types.NodeName) (*reading, error) {
	summary, err := k.summary(ctx, node)
	if err != nil {
		return nil, fmt.Errorf("read usage from kubelet of node %q: %w", node, err)
	}
	return newReading(summary, k.clock.Now()), nil
}

func (k *kubelets) summary(ctx context.Context, node types.NodeName) (*statsapi.Summary, error) {
	connection, err := k.connections.GetConnectionInfo(ctx, node)
	if err != nil {
		return nil, err
	}
	address := url.URL{
		Scheme: connection.Scheme, Host: net.JoinHostPort(connection.Hostname, connection.Port), Path: "/stats/summary",
		RawQuery: url.Values{"only_cpu_and_memory": {"true"}}.Encode(),
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := (&http.Client{Transport: connection.Transport}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body := http.MaxBytesReader(nil, response.Body, maxSummary)
	if response.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(body, 512)) // the status says enough without it
		return nil, fmt.Errorf("%s: %s", response.Status, reason)
	}
	var summary statsapi.Summary
	if err := json.NewDecoder(body).Decode(&summary); err != nil {
		return nil, fmt.Errorf("decode /stats/summary: %w", err)
	}
	return &summary, nil
}

func isReady(node *corev1.Node) bool {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
