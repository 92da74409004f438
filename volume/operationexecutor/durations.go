package operationexecutor

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Durations is the metric of operations on volumes, under upstream's name. Attaching and mounting are both measured by
// it, each in a registry of its own. It is safe for concurrent use.
type Durations struct{ took *prometheus.HistogramVec }

var _ prometheus.Collector = (*Durations)(nil)

// NewDurations makes a Durations that has seen no operation.
func NewDurations() *Durations {
	return &Durations{took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "storage_operation_duration_seconds",
		Help:    "Duration of operations on volumes, by plugin and by what came of them.",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
	}, []string{"volume_plugin", "operation_name", "status", "migrated"})}
}

// Observe notes an operation of a plugin, whose name is that of volume.Spec.FullName. Without a plugin there was none:
// looking one up is not measured. Volumes of the plugins that Kubernetes once had in its own tree are not used here, so
// none is migrated.
func (d *Durations) Observe(plugin, operation string, took time.Duration, err error) {
	if plugin == "" {
		return
	}
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	d.took.WithLabelValues(plugin, operation, status, "false").Observe(took.Seconds())
}

// Describe implements prometheus.Collector.
func (d *Durations) Describe(ch chan<- *prometheus.Desc) { d.took.Describe(ch) }

// Collect implements prometheus.Collector.
func (d *Durations) Collect(ch chan<- prometheus.Metric) { d.took.Collect(ch) }
