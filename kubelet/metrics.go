package kubelet

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// timings are the metrics of calls to the container runtime, under upstream's names.
type timings struct {
	total, errors *prometheus.CounterVec
	duration      *prometheus.HistogramVec
}

func newTimings(registry *prometheus.Registry) *timings {
	labels := []string{"operation_type"}
	t := &timings{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_total", Help: "Calls to the container runtime, by method.",
		}, labels),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_runtime_operations_errors_total", Help: "Failed calls to the container runtime, by method.",
		}, labels),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_runtime_operations_duration_seconds", Help: "Length of calls to the container runtime.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}, labels),
	}
	registry.MustRegister(t.total, t.errors, t.duration)
	return t
}

// observe is cri.Config.Observe.
func (t *timings) observe(method string, took time.Duration, err error) {
	t.total.WithLabelValues(method).Inc()
	t.duration.WithLabelValues(method).Observe(took.Seconds())
	if err != nil {
		t.errors.WithLabelValues(method).Inc()
	}
}
