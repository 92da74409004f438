package clustermetrics

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/klog/v2"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/controlplane/contain"
)

// Path is where the API server serves the metrics; the cluster role berth:metrics-reader allows to read it.
const Path = "/metrics/cluster"

// processTimeout bounds the reading of one process: one that hangs keeps no other's metrics from a Prometheus, which waits for 10 s by
// default.
const processTimeout = 5 * time.Second

// Deps are the dependencies of a Handler. All but Node are required.
type Deps struct {
	Nodes corelisters.NodeLister
	// Connections is how kubelets are reached.
	Connections kubeletclient.ConnectionInfoGetter
	Clock       clock.PassiveClock
	// Node is the name of this machine's Node, empty if it is none. ProxyConfig is the file of its kube-proxy's configuration, and
	// DNSSocket the socket with the metrics of the cluster's DNS; neither need exist.
	Node, ProxyConfig, DNSSocket string
}

// Handler serves the metrics of all processes.
type Handler struct{ deps Deps }

// New returns a Handler.
func New(deps Deps) (*Handler, error) {
	if deps.Nodes == nil || deps.Connections == nil || deps.Clock == nil || deps.ProxyConfig == "" || deps.DNSSocket == "" {
		return nil, errors.New("clustermetrics: Deps.Nodes, Connections, Clock, ProxyConfig and DNSSocket are required")
	}
	return &Handler{deps: deps}, nil
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	gather := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return h.gather(r.Context()) })
	promhttp.HandlerFor(gather, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, ErrorLog: errorLog{}}).ServeHTTP(w, r)
}

// errorLog logs what a client gets no metrics of.
type errorLog struct{}

// Println implements promhttp.Logger.
func (errorLog) Println(v ...any) {
	klog.V(2).InfoS("Failed to read a part of the cluster's metrics", "error", fmt.Sprint(v...))
}

// gather reads all processes at the same time. The error has what could not be read; the rest is returned with it.
func (h *Handler) gather(ctx context.Context) ([]*dto.MetricFamily, error) {
	sources, err := h.sources()
	results := make([]result, len(sources))
	var group sync.WaitGroup
	for i, source := range sources {
		group.Go(func() {
			err := contain.Do("clustermetrics.read", func() error { results[i] = source.result(ctx, h.deps.Clock); return nil })
			if err != nil {
				results[i].err = err
			}
		})
	}
	group.Wait()
	merged, errs := families{}, []error{err}
	state := newState()
	for i, source := range sources {
		if errors.Is(results[i].err, errAbsent) {
			continue
		}
		pairs, given := source.labels(), make(map[string]bool)
		for _, page := range results[i].pages {
			errs = append(errs, merged.add(page, pairs, given))
		}
		errs = append(errs, results[i].err)
		state.add(results[i], pairs)
	}
	for _, family := range state.families() {
		merged[family.GetName()] = family
	}
	return merged.sorted(), errors.Join(errs...)
}

// sources are the processes that exist now.
func (h *Handler) sources() ([]source, error) {
	sources := []source{{process: processControlPlane, node: h.deps.Node, read: readOwn}}
	address, err := proxyAddress(h.deps.ProxyConfig)
	if address != "" {
		sources = append(sources, source{process: processProxy, node: h.deps.Node, read: func(ctx context.Context) ([][]*dto.MetricFamily, error) {
			return readProxy(ctx, address)
		}})
	}
	if _, statErr := os.Stat(h.deps.DNSSocket); statErr == nil {
		sources = append(sources, source{process: processDNS, node: h.deps.Node, read: func(ctx context.Context) ([][]*dto.MetricFamily, error) {
			return readSocket(ctx, h.deps.DNSSocket)
		}})
	}
	nodes, listErr := h.deps.Nodes.List(labels.Everything())
	for _, node := range nodes {
		sources = append(sources, source{process: processKubelet, node: node.Name, read: func(ctx context.Context) ([][]*dto.MetricFamily, error) {
			return h.readKubelet(ctx, node, kubeletPages...)
		}})
		if node.Name != h.deps.Node {
			sources = append(sources, source{process: processProxy, node: node.Name, read: func(ctx context.Context) ([][]*dto.MetricFamily, error) {
				return h.readNodeProxy(ctx, node)
			}})
		}
	}
	return sources, errors.Join(err, listErr)
}

// result is what a process has returned.
type result struct {
	pages [][]*dto.MetricFamily
	took  time.Duration
	err   error
}

// result reads the process.
func (s source) result(ctx context.Context, clock clock.PassiveClock) result {
	ctx, cancel := context.WithTimeout(ctx, processTimeout)
	defer cancel()
	began := clock.Now()
	pages, err := s.read(ctx)
	if err != nil {
		err = fmt.Errorf("metrics of %s of node %s: %w", s.process, s.node, err)
	}
	return result{pages: pages, took: clock.Since(began), err: err}
}

// labels are those of the process's samples.
func (s source) labels() []*dto.LabelPair {
	return []*dto.LabelPair{{Name: ptr.To(nodeLabel), Value: ptr.To(s.node)}, {Name: ptr.To(processLabel), Value: ptr.To(s.process)}}
}

// state says which processes could be read.
type state struct{ up, took *dto.MetricFamily }

func newState() state {
	gauge := func(name, help string) *dto.MetricFamily {
		return &dto.MetricFamily{Name: ptr.To(name), Help: ptr.To(help), Type: dto.MetricType_GAUGE.Enum()}
	}
	return state{
		up:   gauge("berth_process_up", "Whether the metrics of the process could be read completely."),
		took: gauge("berth_process_read_seconds", "How long reading the metrics of the process took."),
	}
}

func (s state) add(r result, labels []*dto.LabelPair) {
	up := 1.0
	if r.err != nil {
		up = 0
	}
	s.up.Metric = append(s.up.Metric, &dto.Metric{Label: labels, Gauge: &dto.Gauge{Value: ptr.To(up)}})
	s.took.Metric = append(s.took.Metric, &dto.Metric{Label: labels, Gauge: &dto.Gauge{Value: ptr.To(r.took.Seconds())}})
}

func (s state) families() []*dto.MetricFamily { return []*dto.MetricFamily{s.up, s.took} }
