package provision

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// queueCollector says, at scrape, how many claims wait for a volume and since when the oldest does.
type queueCollector struct {
	depth, oldest *prometheus.Desc
	// source is set while the controller runs. It returns how many claims wait and the longest wait.
	source atomic.Pointer[func() (int, time.Duration)]
}

var _ prometheus.Collector = (*queueCollector)(nil)

func newQueueCollector() *queueCollector {
	name := func(n string) string { return prometheus.BuildFQName("", metricsSubsystem, n) }
	return &queueCollector{
		depth: prometheus.NewDesc(name("persistentvolumeclaim_provision_waiting"),
			"Claims of this provisioner that wait for their volume.", nil, nil),
		oldest: prometheus.NewDesc(name("persistentvolumeclaim_provision_oldest_seconds"),
			"How long the oldest of the waiting claims has waited.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (q *queueCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- q.depth
	ch <- q.oldest
}

// Collect implements prometheus.Collector.
func (q *queueCollector) Collect(ch chan<- prometheus.Metric) {
	var (
		count int
		age   time.Duration
	)
	if source := q.source.Load(); source != nil {
		count, age = (*source)()
	}
	ch <- prometheus.MustNewConstMetric(q.depth, prometheus.GaugeValue, float64(count))
	ch <- prometheus.MustNewConstMetric(q.oldest, prometheus.GaugeValue, age.Seconds())
}
