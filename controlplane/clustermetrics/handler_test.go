package clustermetrics_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controlplane/clustermetrics"
)

// kubelets are those of a test, by node.
type kubelets map[string]*httptest.Server

// GetConnectionInfo implements kubeletclient.ConnectionInfoGetter.
func (k kubelets) GetConnectionInfo(_ context.Context, name types.NodeName) (*kubeletclient.ConnectionInfo, error) {
	server := k[string(name)]
	if server == nil {
		return nil, fmt.Errorf("no address of node %s", name)
	}
	address, err := url.Parse(server.URL)
	if err != nil {
		return nil, err
	}
	return &kubeletclient.ConnectionInfo{
		Scheme: address.Scheme, Hostname: address.Hostname(), Port: address.Port(), Transport: server.Client().Transport,
	}, nil
}

// podsBesideProxy is the number of Pods of a node whose kubelet serves the metrics of a kube-proxy, too.
const podsBesideProxy = 5

// newKubelet serves metrics as a kubelet does: a counter, a native histogram, and a page that repeats one of them.
func newKubelet(t *testing.T, pods float64) *httptest.Server {
	t.Helper()
	registry, again := prometheus.NewRegistry(), prometheus.NewRegistry()
	running := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_running_pods", Help: "Pods."})
	running.Set(pods)
	starts := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "starts_seconds", Help: "Starts.", NativeHistogramBucketFactor: 1.1, Buckets: []float64{1}})
	starts.Observe(0.5)
	registry.MustRegister(running, starts, collectors.NewGoCollector())
	again.MustRegister(running)
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("/metrics/resource", promhttp.HandlerFor(again, promhttp.HandlerOpts{}))
	proxy := prometheus.NewRegistry()
	proxy.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "kubeproxy_syncs_total", Help: "Syncs."}))
	if pods == podsBesideProxy {
		mux.Handle("/metrics/processes/kube-proxy", promhttp.HandlerFor(proxy, promhttp.HandlerOpts{}))
	}
	mux.Handle("/metrics/probes", promhttp.HandlerFor(prometheus.NewRegistry(), promhttp.HandlerOpts{}))
	server := httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	return server
}

// newHandler returns the handler of a cluster whose nodes are the names, those with a "!" not being ready.
func newHandler(t *testing.T, kubelets kubelets, proxyConfig string, nodes ...string) *clustermetrics.Handler {
	t.Helper()
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, name := range nodes {
		name, down := strings.CutSuffix(name, "!")
		ready := corev1.ConditionTrue
		if down {
			ready = corev1.ConditionUnknown
		}
		require.NoError(t, indexer.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}))
	}
	handler, err := clustermetrics.New(clustermetrics.Deps{
		Nodes: corelisters.NewNodeLister(indexer), Connections: kubelets, Clock: clock.RealClock{}, Node: "n1", ProxyConfig: proxyConfig,
		DNSSocket: filepath.Join(filepath.Dir(proxyConfig), "dns.sock"),
	})
	require.NoError(t, err)
	return handler
}

// lines returns the samples that the handler serves.
func lines(t *testing.T, handler http.Handler) []string {
	t.Helper()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, clustermetrics.Path, http.NoBody))
	require.Equal(t, http.StatusOK, recorder.Code, recorder.Body.String())
	return strings.Split(recorder.Body.String(), "\n")
}

func TestAllProcessesAreOnOnePage(t *testing.T) {
	proxy := httptest.NewServer(promhttp.HandlerFor(func() prometheus.Gatherer {
		registry := prometheus.NewRegistry()
		// The same name as a kubelet's gauge, with another type: the page cannot have both.
		registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_running_pods", Help: "Not Pods."}),
			prometheus.NewCounter(prometheus.CounterOpts{Name: "kubeproxy_syncs_total", Help: "Syncs."}))
		return registry
	}(), promhttp.HandlerOpts{}))
	defer proxy.Close()
	config := filepath.Join(t.TempDir(), "kube-proxy.json")
	require.NoError(t, os.WriteFile(config, []byte(`{"metricsBindAddress": "`+strings.TrimPrefix(proxy.URL, "http://")+`"}`), 0o600))
	dns, err := net.Listen("unix", filepath.Join(filepath.Dir(config), "dns.sock"))
	require.NoError(t, err)
	defer dns.Close()
	names := prometheus.NewRegistry()
	names.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "coredns_requests_total", Help: "Requests."}))
	go func() { _ = http.Serve(dns, promhttp.HandlerFor(names, promhttp.HandlerOpts{})) }() //nolint:gosec // a test's
	got := lines(t, newHandler(t, kubelets{"n1": newKubelet(t, 3), "n2": newKubelet(t, podsBesideProxy), "n3": newKubelet(t, 1)}, config, "n1", "n2", "n3", "down!"))
	require.Zero(t, count(got, `berth_process_up{berth_node="n3",berth_process="kube-proxy"}`), "it has none")
	require.Zero(t, count(got, `berth_process_up{berth_node="down",berth_process="kube-proxy"}`), "whether it has one is unknown")
	for _, want := range []string{
		`coredns_requests_total{berth_node="n1",berth_process="dns"} 0`,
		`berth_process_up{berth_node="n1",berth_process="dns"} 1`,
		`kubeproxy_syncs_total{berth_node="n2",berth_process="kube-proxy"} 0`,
		`kubeproxy_syncs_total{berth_node="n1",berth_process="kube-proxy"} 0`,
		`starts_seconds_bucket{berth_node="n2",berth_process="kubelet",le="1"} 1`,
		`berth_process_up{berth_node="n1",berth_process="controlplane"} 1`,
		`berth_process_up{berth_node="n1",berth_process="kubelet"} 1`,
		`berth_process_up{berth_node="n1",berth_process="kube-proxy"} 1`,
		`berth_process_up{berth_node="down",berth_process="kubelet"} 0`,
	} {
		require.Contains(t, got, want)
	}
	for _, process := range []string{`n1",berth_process="controlplane`, `n1",berth_process="kubelet`, `n2",berth_process="kubelet`} {
		require.Equal(t, 1, count(got, `go_goroutines{berth_node="`+process+`"} `), "each process has its own")
	}
	require.Equal(t, 1, count(got, "# TYPE go_goroutines "))
	require.Equal(t, 1, count(got, "# TYPE kubelet_running_pods "))
	require.Equal(t, 1, count(got, "kubelet_running_pods{"), "not twice, nor those of another type")
}

func count(lines []string, prefix string) int {
	found := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !strings.HasPrefix(line, prefix) })
	return len(found)
}

func TestWhatCannotBeReadLeavesTheRest(t *testing.T) {
	broken := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no such right", http.StatusForbidden) }))
	defer broken.Close()
	config := filepath.Join(t.TempDir(), "none.json")
	got := lines(t, newHandler(t, kubelets{"n1": newKubelet(t, 3), "broken": broken}, config, "n1", "broken", "lost"))
	require.Contains(t, got, `kubelet_running_pods{berth_node="n1",berth_process="kubelet"} 3`)
	require.Contains(t, got, `berth_process_up{berth_node="broken",berth_process="kubelet"} 0`)
	require.Contains(t, got, `berth_process_up{berth_node="lost",berth_process="kubelet"} 0`)
	require.Zero(t, count(got, `berth_process_up{berth_node="n1",berth_process="kube-proxy"}`), "the machine has none")
	require.Zero(t, count(got, `berth_process_up{berth_node="n1",berth_process="dns"}`), "the cluster has none")
	require.NoError(t, os.WriteFile(config, []byte(`{`), 0o600))
	require.Contains(t, lines(t, newHandler(t, nil, config)), `berth_process_up{berth_node="n1",berth_process="controlplane"} 1`)
}
