package kubelet

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/podutil"
)

// outgrown is upstream's word for a volume that is larger than it may be.
const outgrown = "emptydirfs.limit"

// Why resources can never be granted. The first is the word of upstream's node agents before 1.36; since then its API
// server refuses such a wish.
const (
	tooLarge  = "insufficient_node_allocatable"
	needsSwap = "swap_limitation"
)

// lives are the metrics of Pods' lives beside starts, under upstream's names.
type lives struct {
	*starts
	clock clock.PassiveClock

	own, workerStart, statusSync prometheus.Histogram
	rounds                       *prometheus.HistogramVec
	terminated, evictions        *prometheus.CounterVec
	orphans                      prometheus.Counter
	resized                      *prometheus.HistogramVec
	infeasible                   *prometheus.CounterVec
	asked, accepted, restarted   *prometheus.CounterVec
	relist, relistInterval       prometheus.Histogram
	lastSeen                     prometheus.Gauge

	mu     sync.Mutex // guards listed
	listed time.Time
}

func newLives(registry *prometheus.Registry, clk clock.PassiveClock) *lives {
	if clk == nil {
		clk = clock.RealClock{}
	}
	short, long := prometheus.ExponentialBuckets(0.0005, 2, 16), prometheus.ExponentialBuckets(0.05, 2, 16)
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "kubelet_" + name, Help: help, Buckets: buckets})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_" + name, Help: help}, labels)
	}
	l := &lives{
		starts: newStarts(registry), clock: clk,
		own: histogram("pod_start_sli_duration_seconds", "Time from the creation of a Pod without storage of its own until it was "+
			"seen to run, without pulls and init containers.", long),
		workerStart: histogram("pod_worker_start_duration_seconds", "Time from seeing a Pod until its worker began.", short),
		statusSync:  histogram("pod_status_sync_duration_seconds", "Time from a change of a Pod's status until the API server has it.", short),
		rounds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_pod_worker_duration_seconds", Help: "Length of one look of a Pod's worker; what it begins goes on beside it.",
			Buckets: short,
		}, []string{"operation_type"}),
		terminated: counters("terminated_containers_total", "Containers that ran and have ended.", "container_type", "exit_code", "reason"),
		evictions:  counters("evictions", "Pods that were evicted, by the cause.", "eviction_signal"),
		orphans: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_orphaned_runtime_pods_total", Help: "Pods that the runtime held and nobody wanted.",
		}),
		resized: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_pod_resize_duration_milliseconds", Help: "Time from granting other resources until they are in force.",
			Buckets: prometheus.ExponentialBuckets(10, 2, 14),
		}, []string{"success"}),
		infeasible: counters("pod_infeasible_resizes_total", "Resources that were asked for and can never be granted here.", "reason_detail"),
		asked: counters("container_requested_resizes_total", "Amounts of containers' resources that were asked to be others.",
			"resource", "requirement", "operation"),
		accepted: counters("pod_deferred_accepted_resizes_total", "Resources that had to wait for room and were granted, by what made "+
			"the node agent ask again.", "retry_trigger"),
		restarted: counters("restarted_pods_total", "Pods that their source had again under the same UID before the last of them was gone.",
			"static"),
		relist: histogram("pleg_relist_duration_seconds", "Length of listing all that the runtime holds.", short),
		relistInterval: histogram("pleg_relist_interval_seconds", "Time between two such listings: events do the work between them.",
			prometheus.ExponentialBuckets(0.5, 2, 10)),
		lastSeen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_pleg_last_seen_seconds", Help: "When the runtime was last listed, in seconds of the epoch.",
		}),
	}
	for _, static := range []bool{false, true} {
		l.restarted.WithLabelValues(staticLabel(static))
	}
	registry.MustRegister(l.own, l.workerStart, l.statusSync, l.rounds, l.terminated, l.evictions, l.orphans, l.resized,
		l.infeasible, l.asked, l.accepted, l.restarted, l.relist, l.relistInterval, l.lastSeen)
	return l
}

// ContainerEnded implements podworker.Metrics.
func (l *lives) ContainerEnded(kind podutil.Kind, exitCode int32, reason string) {
	l.terminated.WithLabelValues(containerTypes[kind], strconv.Itoa(int(exitCode)), reason).Inc()
}

// PodRunning implements podworker.Metrics.
func (l *lives) PodRunning(sinceSeen, sinceCreated, own time.Duration) {
	l.starts.running(sinceSeen, sinceCreated)
	if own >= 0 {
		l.own.Observe(own.Seconds())
	}
}

// WorkerStarted implements podworker.Metrics.
func (l *lives) WorkerStarted(after time.Duration) { l.workerStart.Observe(after.Seconds()) }

// Round implements podworker.Metrics.
func (l *lives) SyncDuration(kind string, took time.Duration) {
	l.rounds.WithLabelValues(kind).Observe(took.Seconds())
}

// Orphan implements podworker.Metrics.
func (l *lives) OrphanedPod() { l.orphans.Inc() }

// Resized implements podworker.Metrics.
func (l *lives) ResizeFinished(took time.Duration, ok bool) {
	l.resized.WithLabelValues(strconv.FormatBool(ok)).Observe(float64(took.Milliseconds()))
}

// ResizeAsked implements podworker.Metrics.
func (l *lives) ResizeRequested(resource, requirement, operation string) {
	l.asked.WithLabelValues(resource, requirement, operation).Inc()
}

// Accepted implements podworker.Metrics.
func (l *lives) ResizeAccepted(trigger string) { l.accepted.WithLabelValues(trigger).Inc() }

// Restarted implements podworker.Metrics.
func (l *lives) Restarted(static bool) { l.restarted.WithLabelValues(staticLabel(static)).Inc() }

// staticLabel is upstream's value of the label "static".
func staticLabel(static bool) string {
	if static {
		return "true"
	}
	return ""
}

// Infeasible implements podworker.Metrics.
func (l *lives) ResizeInfeasible(detail string) { l.infeasible.WithLabelValues(detail).Inc() }

// Evicted implements podworker.Metrics.
func (l *lives) Evicted(signal string) { l.evictions.WithLabelValues(signal).Inc() }

// statusWritten is status.WriterDeps.Observe.
func (l *lives) statusWritten(took time.Duration) { l.statusSync.Observe(took.Seconds()) }

// relisted is pleg.Deps.Relisted.
func (l *lives) relisted(took time.Duration) {
	now := l.clock.Now()
	l.relist.Observe(took.Seconds())
	l.lastSeen.Set(float64(now.UnixNano()) / float64(time.Second))
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.listed.IsZero() {
		l.relistInterval.Observe(now.Sub(l.listed).Seconds())
	}
	l.listed = now
}
