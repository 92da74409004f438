package stats

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/internal/podutil"
)

var containerLogs = describe("kubelet_container_log_filesystem_used_bytes", "Bytes that the container's logs occupy on the file system",
	"uid", "namespace", "pod", "container")

// logCollector collects the size of the logs of running containers. It reads the same as a summary, but does not ask the runtime, and
// leaves alone the readings from which summaries compute rates.
type logCollector struct{ provider *Provider }

var _ prometheus.Collector = logCollector{}

// NewLogCollector returns the collector of kubelet_container_log_filesystem_used_bytes, which has a value for each running container whose
// logs can be measured.
func NewLogCollector(p *Provider) prometheus.Collector { return logCollector{p} }

// Describe implements prometheus.Collector.
func (c logCollector) Describe(out chan<- *prometheus.Desc) { out <- containerLogs }

// Collect implements prometheus.Collector.
func (c logCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	for _, pod := range c.provider.deps.Pods() {
		for container := range podutil.Containers(&pod.Spec) {
			if started := startTime(pod, container.Name); started.IsZero() {
				continue // it does not run
			}
			logs := c.provider.logStats(ctx, pod, container.Name)
			if logs == nil {
				continue
			}
			out <- prometheus.MustNewConstMetric(containerLogs, prometheus.GaugeValue, float64(*logs.UsedBytes),
				string(pod.UID), pod.Namespace, pod.Name, container.Name)
		}
	}
}
