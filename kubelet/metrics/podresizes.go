package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// podResizes holds the metrics of in-place resizes.
type podResizes struct {
	durations                       *prometheus.HistogramVec
	infeasible, requested, accepted *prometheus.CounterVec
}

func newPodResizes(registry prometheus.Registerer) *podResizes {
	m := &podResizes{
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_pod_resize_duration_milliseconds", Help: "Duration in milliseconds from allocating resources to actuating them.",
			Buckets: prometheus.ExponentialBuckets(10, 2, 14),
		}, []string{"success"}),
		infeasible: counters("pod_infeasible_resizes_total", "Resizes that this node can never fulfil.", "reason_detail"),
		requested: counters("container_requested_resizes_total", "Requested changes of container resources.",
			"resource", "requirement", "operation"),
		accepted: counters("pod_deferred_accepted_resizes_total", "Deferred resizes that were accepted later, by what triggered the retry.",
			"retry_trigger"),
	}
	registry.MustRegister(m.durations, m.infeasible, m.requested, m.accepted)
	return m
}

// Resized implements podworker.Metrics.
func (m *podResizes) ResizeFinished(took time.Duration, ok bool) {
	m.durations.WithLabelValues(strconv.FormatBool(ok)).Observe(float64(took.Milliseconds()))
}

// ResizeAsked implements podworker.Metrics.
func (m *podResizes) ResizeRequested(resource, requirement, operation string) {
	m.requested.WithLabelValues(resource, requirement, operation).Inc()
}

// Accepted implements podworker.Metrics.
func (m *podResizes) ResizeAccepted(trigger string) { m.accepted.WithLabelValues(trigger).Inc() }

// Infeasible implements podworker.Metrics.
func (m *podResizes) ResizeInfeasible(detail string) { m.infeasible.WithLabelValues(detail).Inc() }
