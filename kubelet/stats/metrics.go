package stats

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// scrapeTimeout bounds one scrape.
const scrapeTimeout = 10 * time.Second

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// The metrics of /metrics/resource have upstream's names, units and labels.
var (
	nodeCPU          = describe("node_cpu_usage_seconds_total", "CPU time used by the node in core-seconds")
	nodeMemory       = describe("node_memory_working_set_bytes", "Working set of the node in bytes")
	nodeSwap         = describe("node_swap_usage_bytes", "Swap used by the node in bytes")
	containerCPU     = describe("container_cpu_usage_seconds_total", "CPU time used by the container", containerLabels...)
	containerMemory  = describe("container_memory_working_set_bytes", "Working set of the container in bytes", containerLabels...)
	containerSwap    = describe("container_swap_usage_bytes", "Swap used by the container in bytes", containerLabels...)
	containerSwapMax = describe("container_swap_limit_bytes", "Swap that the container may use in bytes", containerLabels...)
	containerStarted = describe("container_start_time_seconds", "Start time of the container since unix epoch", containerLabels...)
	podCPU           = describe("pod_cpu_usage_seconds_total", "CPU time used by the pod in core-seconds", podLabels...)
	podMemory        = describe("pod_memory_working_set_bytes", "Working set of the pod in bytes", podLabels...)
	podSwap          = describe("pod_swap_usage_bytes", "Swap used by the pod in bytes", podLabels...)
	scrapeError      = describe("resource_scrape_error", "1 if there was an error while getting the metrics, 0 if not")

	containerLabels = []string{"container", "pod", "namespace"}
	podLabels       = []string{"pod", "namespace"}
)

// Resources returns the metrics of /metrics/resource. They are read when they are gathered, within ctx.
func (p *Provider) Resources(ctx context.Context) prometheus.Gatherer {
	return gatherer(func(out chan<- prometheus.Metric) {
		ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
		defer cancel()
		failed := 0.0
		if summary, err := p.Summary(ctx, true); err != nil {
			p.deps.Logger.Warn("failed to read resource metrics", "error", err)
			failed = 1
		} else {
			resourceMetrics(summary, out)
		}
		out <- prometheus.MustNewConstMetric(scrapeError, prometheus.GaugeValue, failed)
	})
}

// resourceMetrics converts a summary to metrics. Each has the time at which it was measured: metrics-server computes rates with it.
func resourceMetrics(summary *statsapi.Summary, out chan<- prometheus.Metric) {
	send := func(at metav1.Time, desc *prometheus.Desc, kind prometheus.ValueType, n *uint64, unit float64, labels ...string) {
		if n == nil {
			return
		}
		metric := prometheus.MustNewConstMetric(desc, kind, float64(*n)*unit, labels...)
		if at.Unix() > 0 { // a runtime may not know it
			metric = prometheus.NewMetricWithTimestamp(at.Time, metric)
		}
		out <- metric
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	node := &summary.Node
	send(node.CPU.Time, nodeCPU, counter, node.CPU.UsageCoreNanoSeconds, 1e-9)
	send(node.Memory.Time, nodeMemory, gauge, node.Memory.WorkingSetBytes, 1)
	send(node.Swap.Time, nodeSwap, gauge, node.Swap.SwapUsageBytes, 1)
	for i := range summary.Pods {
		s := &summary.Pods[i]
		if s.CPU != nil {
			send(s.CPU.Time, podCPU, counter, s.CPU.UsageCoreNanoSeconds, 1e-9, s.PodRef.Name, s.PodRef.Namespace)
		}
		if s.Memory != nil {
			send(s.Memory.Time, podMemory, gauge, s.Memory.WorkingSetBytes, 1, s.PodRef.Name, s.PodRef.Namespace)
		}
		if s.Swap != nil {
			send(s.Swap.Time, podSwap, gauge, s.Swap.SwapUsageBytes, 1, s.PodRef.Name, s.PodRef.Namespace)
		}
		for _, c := range s.Containers {
			labels := []string{c.Name, s.PodRef.Name, s.PodRef.Namespace}
			if c.CPU != nil {
				send(c.CPU.Time, containerCPU, counter, c.CPU.UsageCoreNanoSeconds, 1e-9, labels...)
			}
			if c.Memory != nil {
				send(c.Memory.Time, containerMemory, gauge, c.Memory.WorkingSetBytes, 1, labels...)
			}
			if c.Swap != nil {
				send(c.Swap.Time, containerSwap, gauge, c.Swap.SwapUsageBytes, 1, labels...)
				send(c.Swap.Time, containerSwapMax, gauge, swapLimit(c.Swap), 1, labels...)
			}
			if !c.StartTime.IsZero() {
				out <- prometheus.MustNewConstMetric(containerStarted, gauge, float64(c.StartTime.Unix()), labels...)
			}
		}
	}
}

// swapLimit returns how much swap a container may use, nil without a limit: a summary has what is in use and what is left. A limit that was
// set below what is in use appears as the latter until the kernel has swapped that in.
func swapLimit(s *statsapi.SwapStats) *uint64 {
	if s.SwapAvailableBytes == nil || *s.SwapAvailableBytes >= unlimited {
		return nil
	}
	return sum(s.SwapAvailableBytes, s.SwapUsageBytes)
}

// Cadvisor returns the metrics of /metrics/cadvisor. They are read when they are gathered.
func (p *Provider) Cadvisor(ctx context.Context) prometheus.Gatherer {
	if p.deps.Containers != nil {
		return p.deps.Containers.Gatherer(ctx)
	}
	return gatherer(func(out chan<- prometheus.Metric) {
		ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
		defer cancel()
		if err := p.runtimeMetrics(ctx, out); err != nil {
			p.deps.Logger.Warn("failed to read metrics of container runtime", "error", err)
		}
	})
}

// runtimeMetrics forwards the runtime's metrics.
func (p *Provider) runtimeMetrics(ctx context.Context, out chan<- prometheus.Metric) error {
	described, err := p.deps.Runtime.ListMetricDescriptors(ctx, &runtimeapi.ListMetricDescriptorsRequest{})
	if err != nil {
		return err
	}
	descs := map[string]*prometheus.Desc{}
	for _, d := range described.Descriptors {
		descs[d.Name] = prometheus.NewDesc(d.Name, d.Help, d.LabelKeys, nil)
	}
	resp, err := p.deps.Runtime.ListPodSandboxMetrics(ctx, &runtimeapi.ListPodSandboxMetricsRequest{})
	if err != nil {
		return err
	}
	send := func(metrics []*runtimeapi.Metric) {
		for _, m := range metrics {
			kind := prometheus.GaugeValue
			if m.MetricType == runtimeapi.MetricType_COUNTER {
				kind = prometheus.CounterValue
			}
			if descs[m.Name] == nil {
				continue
			}
			// A metric whose labels differ from its descriptor is omitted.
			if metric, err := prometheus.NewConstMetric(descs[m.Name], kind, float64(m.Value.GetValue()),
				m.LabelValues...); err == nil {
				out <- metric
			}
		}
	}
	for _, sandbox := range resp.PodMetrics {
		send(sandbox.Metrics)
		for _, c := range sandbox.ContainerMetrics {
			send(c.Metrics)
		}
	}
	return nil
}

// gatherer returns a Gatherer that calls collect at each scrape.
func gatherer(collect func(chan<- prometheus.Metric)) prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector(collect))
	return registry
}

type collector func(chan<- prometheus.Metric)

var _ prometheus.Collector = collector(nil)

// Describe implements prometheus.Collector: the metrics are not known in advance.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(out chan<- prometheus.Metric) { c(out) }
