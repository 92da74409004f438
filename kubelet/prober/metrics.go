package prober

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/prober/probe"
)

// The values of the label "result".
const (
	resultSuccessful = "successful"
	resultFailed     = "failed"
	resultUnknown    = "unknown"
)

// metrics have upstream's names and labels, so that existing dashboards show them.
type metrics struct {
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

func newMetrics() *metrics {
	return &metrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "prober_probe_total",
			Help: "Cumulative number of a liveness, readiness or startup probe for a container by result.",
		}, []string{"probe_type", "result", "container", "pod", "namespace", "pod_uid"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "prober_probe_duration_seconds",
			Help: "Duration in seconds for a probe response.",
		}, []string{"probe_type", "container", "pod", "namespace"}),
	}
}

// register adds the metrics to a registry. It is an error if the registry has them already, since their values would be
// another Manager's.
func (m *metrics) register(r prometheus.Registerer) error {
	if err := errors.Join(r.Register(m.total), r.Register(m.duration)); err != nil {
		return fmt.Errorf("register probe metrics: %w", err)
	}
	return nil
}

// observe counts one probe. An error means that it has no result.
func (m *metrics) observe(
	pod *corev1.Pod, container string, kind Type, result probe.Result, err error, took time.Duration,
) {
	outcome := resultSuccessful
	switch {
	case err != nil:
		outcome = resultUnknown
	case result == probe.Failure:
		outcome = resultFailed
	}
	m.total.WithLabelValues(string(kind), outcome, container, pod.Name, pod.Namespace, string(pod.UID)).Inc()
	if outcome != resultFailed {
		m.duration.WithLabelValues(string(kind), container, pod.Name, pod.Namespace).Observe(took.Seconds())
	}
}

// forget drops the series of one container.
func (m *metrics) forget(pod *corev1.Pod, container string) {
	for _, kind := range []Type{Startup, Liveness, Readiness} {
		for _, outcome := range []string{resultSuccessful, resultFailed, resultUnknown} {
			m.total.DeleteLabelValues(string(kind), outcome, container, pod.Name, pod.Namespace, string(pod.UID))
		}
		m.duration.DeleteLabelValues(string(kind), container, pod.Name, pod.Namespace)
	}
}
