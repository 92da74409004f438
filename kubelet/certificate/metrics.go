package certificate

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metricNames are the names of the metrics of one kind of certificate; an empty one is not kept.
type metricNames struct{ failures, ttl, rotation string }

// The names that upstream has for the metrics of the client certificate and of the serving certificate, and those of kube-proxy's, which
// upstream does not manage.
func clientMetrics() metricNames {
	return metricNames{
		failures: "kubelet_certificate_manager_client_expiration_renew_errors", ttl: "kubelet_certificate_manager_client_ttl_seconds",
	}
}

func servingMetrics() metricNames {
	return metricNames{
		failures: "kubelet_server_expiration_renew_errors", ttl: "kubelet_certificate_manager_server_ttl_seconds",
		rotation: "kubelet_certificate_manager_server_rotation_seconds",
	}
}

func proxyMetrics() metricNames {
	return metricNames{failures: "berth_kube_proxy_certificate_renew_errors"}
}

// managerMetrics are the metrics of one certificate.
type managerMetrics struct {
	// failures counts requests that were denied, timed out, or returned a certificate that cannot be stored.
	failures prometheus.Counter
	// rotation is for how long certificates had been valid when they were replaced; nil if it is not kept.
	rotation prometheus.Histogram
	all      []prometheus.Collector
}

var _ prometheus.Collector = (*managerMetrics)(nil)

// newManagerMetrics returns the metrics by these names. ttl returns for how long the certificate is still valid, and whether there is one.
func newManagerMetrics(names metricNames, ttl func() (time.Duration, bool)) *managerMetrics {
	m := &managerMetrics{
		failures: prometheus.NewCounter(prometheus.CounterOpts{Name: names.failures, Help: "Failed certificate signing requests."}),
	}
	m.all = append(m.all, m.failures)
	if names.ttl != "" {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: names.ttl, Help: "For how many seconds the certificate is still valid; +Inf while there is none.",
		}, func() float64 {
			left, exists := ttl()
			if !exists {
				return math.Inf(1)
			}
			return math.Trunc(left.Seconds())
		}))
	}
	if names.rotation != "" {
		const minute, hour, day = 60, 60 * 60, 24 * 60 * 60
		m.rotation = prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: names.rotation, Help: "For how many seconds certificates had been in use when they were replaced.",
			Buckets: []float64{minute, hour, 4 * hour, day, 7 * day, 30 * day, 90 * day, 180 * day, 360 * day, 1440 * day},
		})
		m.all = append(m.all, m.rotation)
	}
	return m
}

// Describe implements prometheus.Collector.
func (m *managerMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, one := range m.all {
		one.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (m *managerMetrics) Collect(out chan<- prometheus.Metric) {
	for _, one := range m.all {
		one.Collect(out)
	}
}
