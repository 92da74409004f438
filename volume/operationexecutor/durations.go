package operationexecutor

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Durations is the metric storage_operation_duration_seconds: the duration of operations on volumes. Attach/detach and
// mounting use one each, in registries of their own. It is safe for concurrent use.
type Durations struct{ took *prometheus.HistogramVec }

var _ prometheus.Collector = (*Durations)(nil)

// NewDurations returns a Durations without observations.
func NewDurations() *Durations {
	return &Durations{took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "storage_operation_duration_seconds",
		Help:    "Duration of storage operations, by plugin, operation and status.",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
	}, []string{"volume_plugin", "operation_name", "status", "migrated"})}
}

// Observe records an operation of a plugin; the name is that of volume.Spec.QualifiedPluginName. An empty name is
// ignored: the lookup of a plugin is not measured. Berth has no in-tree plugins, so the label migrated is always false.
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
