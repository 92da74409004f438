package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// Actual and Desired are the worlds that are counted. What they answer must not cost more for there being many volumes.
type (
	// Actual counts attachments by plugin.
	Actual interface{ Counts() cache.Count }
	// Desired counts what should be attached by plugin, and what Pods use by node and plugin.
	Desired interface {
		Counts() cache.Count
		CountsPerNode() map[types.NodeName]cache.Count
	}
)

// Collector is the metrics of one controller. Its methods are safe for concurrent use.
type Collector struct {
	actual    Actual
	desired   Desired
	total     *prometheus.Desc
	inUse     *prometheus.Desc
	forced    *prometheus.CounterVec
	durations *operationexecutor.Durations
}

var _ prometheus.Collector = (*Collector)(nil)

// New returns a Collector.
func New(actual Actual, desired Desired) *Collector {
	return &Collector{
		actual: actual, desired: desired,
		total: prometheus.NewDesc("attachdetach_controller_total_volumes",
			"Number of volumes that are attached, or should be, by plugin.", []string{"plugin_name", "state"}, nil),
		inUse: prometheus.NewDesc("storage_count_attachable_volumes_in_use",
			"Number of attachable volumes that Pods use, by node and plugin.", []string{"node", "volume_plugin"}, nil),
		forced: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "attachdetach_controller_forced_detaches",
			Help: "Number of detaches that did not wait for the volume to be unmounted, by reason.",
		}, []string{"reason"}),
		durations: operationexecutor.NewDurations(),
	}
}

// Observe notes the duration of a call to a plugin.
func (c *Collector) Observe(plugin, operation string, took time.Duration, err error) {
	c.durations.Observe(plugin, operation, took, err)
}

// ForcedDetach counts a forced detach.
func (c *Collector) ForcedDetach(reason string) { c.forced.WithLabelValues(reason).Inc() }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.total
	ch <- c.inUse
	c.forced.Describe(ch)
	c.durations.Describe(ch)
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for plugin, n := range c.actual.Counts() {
		ch <- prometheus.MustNewConstMetric(c.total, prometheus.GaugeValue, float64(n), plugin, "actual_state_of_world")
	}
	for plugin, n := range c.desired.Counts() {
		ch <- prometheus.MustNewConstMetric(c.total, prometheus.GaugeValue, float64(n), plugin, "desired_state_of_world")
	}
	for node, count := range c.desired.CountsPerNode() {
		for plugin, n := range count {
			ch <- prometheus.MustNewConstMetric(c.inUse, prometheus.GaugeValue, float64(n), string(node), plugin)
		}
	}
	c.forced.Collect(ch)
	c.durations.Collect(ch)
}
