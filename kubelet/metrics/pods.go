package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/podworker"
)

// Pods holds the metrics of Pods and of their workers.
type Pods struct {
	*podStarts
	*podResizes

	sli, workerStart, statusSync                  prometheus.Histogram
	syncs, evictionStatsAge                       *prometheus.HistogramVec
	terminated, evictions, preemptions, restarted *prometheus.CounterVec
	orphans                                       prometheus.Counter
}

var _ podworker.Metrics = (*Pods)(nil)

// fastBuckets are for durations from half a millisecond on, slowBuckets from 50 ms on.
func fastBuckets() []float64 { return prometheus.ExponentialBuckets(0.0005, 2, 16) }
func slowBuckets() []float64 { return prometheus.ExponentialBuckets(0.05, 2, 16) }

func histogram(name, help string, buckets []float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kubelet_" + name, Help: help, Buckets: buckets})
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_" + name, Help: help}, labels)
}

// NewPods registers the metrics of Pods.
func NewPods(registry prometheus.Registerer) *Pods {
	m := &Pods{
		podStarts: newPodStarts(registry), podResizes: newPodResizes(registry),
		sli: histogram("pod_start_sli_duration_seconds", "Duration in seconds from the creation of a pod without persistent storage "+
			"to its containers being seen running, without image pulls and init containers.", slowBuckets()),
		workerStart: histogram("pod_worker_start_duration_seconds", "Duration in seconds from seeing a pod to starting its worker.",
			fastBuckets()),
		statusSync: histogram("pod_status_sync_duration_seconds", "Duration in seconds from a change of a pod's status to its "+
			"write to the API server.", fastBuckets()),
		syncs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_pod_worker_duration_seconds", Help: "Duration in seconds of one pod worker sync; asynchronous operations " +
				"are not included.", Buckets: fastBuckets(),
		}, []string{"operation_type"}),
		terminated:  counters("terminated_containers_total", "Containers that ran and have terminated.", "container_type", "exit_code", "reason"),
		preemptions: counters("preemptions", "Cumulative number of pod preemptions by preemption resource", "preemption_signal"),
		evictions:   counters("evictions", "Cumulative number of pod evictions by eviction signal.", "eviction_signal"),
		evictionStatsAge: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_eviction_stats_age_seconds", Help: "Time between when stats are collected, and when pod is evicted based on those " +
				"stats by eviction signal", Buckets: prometheus.DefBuckets,
		}, []string{"eviction_signal"}),
		restarted: counters("restarted_pods_total", "Pods that were deleted and recreated with the same UID while the kubelet was "+
			"still terminating them.", "static"),
		orphans: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_orphaned_runtime_pods_total", Help: "Pods found in the runtime without a corresponding desired pod.",
		}),
	}
	for _, static := range []bool{false, true} {
		m.restarted.WithLabelValues(staticLabel(static))
	}
	registry.MustRegister(m.sli, m.workerStart, m.statusSync, m.syncs, m.terminated, m.evictions, m.evictionStatsAge, m.preemptions, m.orphans, m.restarted)
	return m
}

// ContainerEnded implements podworker.Metrics.
func (m *Pods) ContainerEnded(kind podutil.Kind, exitCode int32, reason string) {
	m.terminated.WithLabelValues(containerTypes[kind], strconv.Itoa(int(exitCode)), reason).Inc()
}

// PodRunning implements podworker.Metrics.
func (m *Pods) PodRunning(sinceSeen, sinceCreated, own time.Duration) {
	m.observeRunning(sinceSeen, sinceCreated)
	if own >= 0 {
		m.sli.Observe(own.Seconds())
	}
}

// WorkerStarted implements podworker.Metrics.
func (m *Pods) WorkerStarted(after time.Duration) { m.workerStart.Observe(after.Seconds()) }

// Round implements podworker.Metrics.
func (m *Pods) SyncDuration(kind string, took time.Duration) {
	m.syncs.WithLabelValues(kind).Observe(took.Seconds())
}

// Orphan implements podworker.Metrics.
func (m *Pods) OrphanedPod() { m.orphans.Inc() }

// Restarted implements podworker.Metrics.
func (m *Pods) Restarted(static bool) { m.restarted.WithLabelValues(staticLabel(static)).Inc() }

// Preempted implements podworker.Metrics.
func (m *Pods) Preempted(resource string) { m.preemptions.WithLabelValues(resource).Inc() }

// Evicted implements podworker.Metrics.
func (m *Pods) Evicted(signal string) { m.evictions.WithLabelValues(signal).Inc() }

// ObserveEvictionStatsAge records how old the measurement was by which a Pod is evicted.
func (m *Pods) ObserveEvictionStatsAge(signal string, age time.Duration) {
	m.evictionStatsAge.WithLabelValues(signal).Observe(age.Seconds())
}

// ObserveStatusWrite records the time from a change of a Pod's status to its write.
func (m *Pods) ObserveStatusWrite(took time.Duration) { m.statusSync.Observe(took.Seconds()) }

// staticLabel is the value of the label "static".
func staticLabel(static bool) string {
	if static {
		return "true"
	}
	return ""
}
