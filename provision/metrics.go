package provision

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are counted by outcome: a claim that somebody else serves, that is refused, or whose volume is
// there already counts neither as a success nor as a failure; an API server that does not answer is not a
// failure of the provisioner.
type metrics struct {
	registry *prometheus.Registry

	provisioned, provisionFailed *prometheus.CounterVec
	provisionSeconds             *prometheus.HistogramVec
	deleted, deleteFailed        *prometheus.CounterVec
	deleteSeconds                *prometheus.HistogramVec
	// queue is filled at scrape from the running engine, if there is one.
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
			"Persistent volumes provisioned and saved, by storage class and data source.", "class", "source"),
		provisionFailed: counter("persistentvolumeclaim_provision_failed_total",
			"Calls of the provisioner that failed, by storage class and data source.", "class", "source"),
		provisionSeconds: histogram("persistentvolumeclaim_provision_duration_seconds",
			"Time from the call of the provisioner that succeeded until the volume was saved.", "class", "source"),
		deleted: counter("persistentvolume_delete_total",
			"Persistent volumes whose storage was deleted, by storage class.", "class"),
		deleteFailed: counter("persistentvolume_delete_failed_total",
			"Deletions of storage that failed, by storage class.", "class"),
		deleteSeconds: histogram("persistentvolume_delete_duration_seconds",
			"Time that the deletion of storage took, by storage class.", "class"),
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
