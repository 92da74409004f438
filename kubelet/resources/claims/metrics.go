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
			Namespace: "dra", Name: name, Help: help, Buckets: prometheus.ExponentialBucketsRange(0.1, 40, 15),
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
	return []prometheus.Collector{m.metrics.operations, m.metrics.calls, (*inUse)(m)}
}

// inUseDesc describes how many claims are prepared, by driver and, as anyDriver, altogether.
func inUseDesc() *prometheus.Desc {
	return prometheus.NewDesc("dra_resource_claims_in_use", "ResourceClaims that are prepared on the node, by driver; <any> counts each claim once.",
		[]string{"driver_name"}, nil)
}

// anyDriver stands for all drivers.
const anyDriver = "<any>"

// inUse counts the claims of a Manager.
type inUse Manager

// Describe implements prometheus.Collector.
func (u *inUse) Describe(to chan<- *prometheus.Desc) { to <- inUseDesc() }

// Collect implements prometheus.Collector.
func (u *inUse) Collect(to chan<- prometheus.Metric) {
	counts := map[string]int{anyDriver: 0}
	u.mu.Lock()
	for _, c := range u.claims {
		if !c.prepared {
			continue
		}
		counts[anyDriver]++
		for driver := range c.DriverState {
			counts[driver]++
		}
	}
	u.mu.Unlock()
	desc := inUseDesc()
	for driver, count := range counts {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(count), driver)
	}
}
