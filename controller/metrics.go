package controller

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// resultLabel is the value of the label "result".
type resultLabel string

const (
	resultSuccess  resultLabel = "success"
	resultError    resultLabel = "error"
	resultTerminal resultLabel = "terminal_error"
	resultPanic    resultLabel = "panic"
	resultRequeue  resultLabel = "requeue"
	resultAfter    resultLabel = "requeue_after"
)

// metrics are the metrics of a controller and its queue. They have the names of client-go's work queues where one exists, so
// that dashboards for those work; the other names begin with berth_controller_.
type metrics struct {
	stats         func() stats
	queueDuration prometheus.Histogram
	workDuration  prometheus.Histogram
	results       map[resultLabel]prometheus.Counter

	depth, adds, retries, unfinished, longest    *prometheus.Desc
	oldest, delayed, limited, limitedFor, active *prometheus.Desc
}

var _ prometheus.Collector = (*metrics)(nil)

func newMetrics(name string, read func() stats) *metrics {
	histogram := func(metric, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: metric, Help: help, ConstLabels: prometheus.Labels{"name": name},
			Buckets: prometheus.ExponentialBuckets(1e-6, 10, 10),
		})
	}
	describe := func(metric, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(metric, help, labels, prometheus.Labels{"name": name})
	}
	m := &metrics{
		stats:         read,
		queueDuration: histogram("workqueue_queue_duration_seconds", "Time that keys were ready before a worker took them."),
		workDuration:  histogram("workqueue_work_duration_seconds", "Duration of reconciliations."),
		results:       map[resultLabel]prometheus.Counter{},
		depth:         describe("workqueue_depth", "Keys that are ready to be reconciled.", "priority"),
		adds:          describe("workqueue_adds_total", "Keys added, before they are merged.", "priority"),
		retries:       describe("workqueue_retries_total", "Keys requeued with exponential backoff."),
		unfinished:    describe("workqueue_unfinished_work_seconds", "Sum of the ages of active reconciliations."),
		longest:       describe("workqueue_longest_running_processor_seconds", "Age of the longest active reconciliation."),
		oldest:        describe("berth_controller_oldest_age_seconds", "Time that the oldest ready key has waited."),
		delayed:       describe("berth_controller_delayed", "Keys to be reconciled at a later time."),
		limited:       describe("berth_controller_rate_limited", "Keys that wait after a failure."),
		limitedFor:    describe("berth_controller_rate_limited_seconds_total", "Sum of the delays after failures."),
		active:        describe("berth_controller_in_flight", "Active reconciliations."),
	}
	for _, label := range []resultLabel{
		resultSuccess, resultError, resultTerminal, resultPanic, resultRequeue, resultAfter,
	} {
		m.results[label] = prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_controller_reconcile_total", Help: "Reconciliations, by result.",
			ConstLabels: prometheus.Labels{"name": name, "result": string(label)},
		})
	}
	return m
}

// observe records one run.
func (m *metrics) observe(label resultLabel, waited, worked time.Duration) {
	m.queueDuration.Observe(waited.Seconds())
	m.workDuration.Observe(worked.Seconds())
	m.results[label].Inc()
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		m.depth, m.adds, m.retries, m.unfinished, m.longest, m.oldest, m.delayed, m.limited, m.limitedFor, m.active,
	} {
		ch <- desc
	}
	m.queueDuration.Describe(ch)
	m.workDuration.Describe(ch)
	for _, counter := range m.results {
		counter.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	s := m.stats()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	counter := func(desc *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, labels...)
	}
	for priority, label := range [priorities]string{priorityBackground: "background", priorityLive: "live"} {
		gauge(m.depth, float64(s.depth[priority]), label)
		counter(m.adds, float64(s.adds[priority]), label)
	}
	counter(m.retries, float64(s.retries))
	gauge(m.unfinished, s.unfinished.Seconds())
	gauge(m.longest, s.longest.Seconds())
	gauge(m.oldest, s.oldest.Seconds())
	gauge(m.delayed, float64(s.delayed))
	gauge(m.limited, float64(s.limited))
	counter(m.limitedFor, s.waited.Seconds())
	gauge(m.active, float64(s.running))
	m.queueDuration.Collect(ch)
	m.workDuration.Collect(ch)
	for _, result := range m.results {
		result.Collect(ch)
	}
}
