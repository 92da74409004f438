package claims

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are named as upstream's.
type metrics struct{ operations, calls *prometheus.HistogramVec }

func newMetrics() *metrics {
	of := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "dra", Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.1, 1.5, 15),
		}, labels)
	}
	return &metrics{
		operations: of("operations_duration_seconds", "Seconds that preparing or unpreparing all claims of a Pod takes.", "operation_name", "is_error"),
		calls:      of("grpc_operations_duration_seconds", "Seconds of requests to DRA drivers.", "driver_name", "method_name", "grpc_status_code"),
	}
}

func (m *metrics) observe(operation string, took time.Duration, err error) {
	m.operations.WithLabelValues(operation, strconv.FormatBool(err != nil)).Observe(took.Seconds())
}

// Collectors returns the metrics, to be registered.
func (m *Manager) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.metrics.operations, m.metrics.calls}
}
