package provision

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count outcomes. A claim that another provisioner serves, that is refused, or that has a volume already is neither
// a success nor a failure; an API server that is unavailable is not a failure of the provisioner.
type metrics struct {
	registry *prometheus.Registry

	provisioned, provisionFailed *prometheus.CounterVec
	provisionSeconds             *prometheus.HistogramVec
	deleted, deleteFailed        *prometheus.CounterVec
	deleteSeconds                *prometheus.HistogramVec
	// queue collects from the running engine, if there is one.
	queue *queueCollector
}

const metricsSubsystem = "controller"

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(
			prometheus.CounterOpts{Subsystem: metricsSubsystem, Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: metricsSubsystem, Name: name, Help: help, Buckets: prometheus.DefBuckets}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		provisioned: counter("persistentvolumeclaim_provision_total",
			"Provisioned and saved persistent volumes, by storage class and data source.", "class", "source"),
		provisionFailed: counter("persistentvolumeclaim_provision_failed_total",
			"Failed calls of the provisioner, by storage class and data source.", "class", "source"),
		provisionSeconds: histogram("persistentvolumeclaim_provision_duration_seconds",
			"Time from the successful call of the provisioner until the volume was saved, by storage class and data source.", "class", "source"),
		deleted: counter("persistentvolume_delete_total",
			"Persistent volumes whose storage was deleted, by storage class.", "class"),
		deleteFailed: counter("persistentvolume_delete_failed_total",
			"Failed deletions of storage, by storage class.", "class"),
		deleteSeconds: histogram("persistentvolume_delete_duration_seconds",
			"Duration of the deletion of storage, by storage class.", "class"),
		queue: newQueueCollector(),
	}
	m.registry.MustRegister(m.collectors()...)
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.provisioned, m.provisionFailed, m.provisionSeconds, m.deleted, m.deleteFailed, m.deleteSeconds, m.queue,
	}
}

func (m *metrics) register(reg prometheus.Registerer) error {
	for _, c := range m.collectors() {
		if err := reg.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// queueCollector collects how many claims wait for a volume, and how long the oldest has waited.
type queueCollector struct {
	depth, oldest *prometheus.Desc
	// source is set while the controller runs. It returns the number of claims that wait, and the longest wait.
	source atomic.Pointer[func() (int, time.Duration)]
}

var _ prometheus.Collector = (*queueCollector)(nil)

func newQueueCollector() *queueCollector {
	name := func(n string) string { return prometheus.BuildFQName("", metricsSubsystem, n) }
	return &queueCollector{
		depth: prometheus.NewDesc(name("persistentvolumeclaim_provision_waiting"),
			"Claims of this provisioner that wait for a volume.", nil, nil),
		oldest: prometheus.NewDesc(name("persistentvolumeclaim_provision_oldest_seconds"),
			"Age of the oldest claim that waits for a volume.", nil, nil),
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
