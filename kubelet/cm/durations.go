package cm

import (
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// The values of the label operation_type.
const (
	operationCreate  = "create"
	operationUpdate  = "update"
	operationDestroy = "destroy"
)

// Durations is the metric kubelet_cgroup_manager_duration_seconds: the duration of operations on the cgroups of Pods and on those above
// them. To destroy a cgroup includes to kill the processes that are left in it. It is safe for concurrent use.
type Durations struct {
	*prometheus.HistogramVec
	clock clock.PassiveClock
}

var _ prometheus.Collector = (*Durations)(nil)

// NewDurations returns a Durations without observations. The buckets are those of upstream, so that its alerts apply.
func NewDurations(clock clock.PassiveClock) *Durations {
	return &Durations{clock: clock, HistogramVec: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "kubelet_cgroup_manager_duration_seconds", Help: "Duration of operations on cgroups of pods, by operation.",
		Buckets: prometheus.DefBuckets,
	}, []string{"operation_type"})}
}

// start returns the function that records an operation that starts now. Operations that fail are recorded, too.
func (d *Durations) start(operation string) (done func()) {
	start := d.clock.Now()
	return func() { d.WithLabelValues(operation).Observe(d.clock.Now().Sub(start).Seconds()) }
}

// ensureOperation returns what it means to ensure the cgroup at the path: to create it, or to update it if it exists in any hierarchy.
func ensureOperation(hierarchies []Hierarchy, path string) string {
	for _, h := range hierarchies {
		if _, err := os.Stat(filepath.Join(h.Dir, path)); err == nil {
			return operationUpdate
		}
	}
	return operationCreate
}
