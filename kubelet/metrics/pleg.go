package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/pleg"
)

// PLEG holds the metrics of the watch of the runtime: of relists, the full listings of its Pods, and of its stream of events.
type PLEG struct {
	clock                       clock.PassiveClock
	duration, interval, latency prometheus.Histogram
	lastSeen                    prometheus.Gauge
	opened, failed              prometheus.Counter

	mu   sync.Mutex // guards last
	last time.Time
}

var _ pleg.Metrics = (*PLEG)(nil)

// NewPLEG registers the metrics of the watch of the runtime.
func NewPLEG(registry prometheus.Registerer, clock clock.PassiveClock) *PLEG {
	m := &PLEG{
		clock:    clock,
		duration: histogram("pleg_relist_duration_seconds", "Duration in seconds of listing all pods of the runtime.", fastBuckets()),
		interval: histogram("pleg_relist_interval_seconds", "Interval in seconds between two such lists; changes in between arrive as events.",
			prometheus.ExponentialBuckets(0.5, 2, 10)),
		lastSeen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_pleg_last_seen_seconds", Help: "Time of the last list of the runtime's pods, in seconds of the Unix epoch.",
		}),
		latency: histogram("evented_pleg_connection_latency_seconds", "Time in seconds from an event of the runtime to its arrival.",
			prometheus.DefBuckets),
		opened: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_evented_pleg_connection_success_count", Help: "How often the runtime's stream of events was opened.",
		}),
		failed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_evented_pleg_connection_error_count", Help: "How often the runtime's stream of events could not be opened, or ended.",
		}),
	}
	registry.MustRegister(m.duration, m.interval, m.lastSeen, m.latency, m.opened, m.failed)
	return m
}

// StreamOpened implements pleg.Metrics.
func (m *PLEG) StreamOpened() { m.opened.Inc() }

// StreamFailed implements pleg.Metrics.
func (m *PLEG) StreamFailed() { m.failed.Inc() }

// EventReceived implements pleg.Metrics.
func (m *PLEG) EventReceived(age time.Duration) { m.latency.Observe(age.Seconds()) }

// Relisted implements pleg.Metrics.
func (m *PLEG) Relisted(took time.Duration) {
	now := m.clock.Now()
	m.duration.Observe(took.Seconds())
	m.lastSeen.Set(float64(now.UnixNano()) / float64(time.Second))
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.last.IsZero() {
		m.interval.Observe(now.Sub(m.last).Seconds())
	}
	m.last = now
}
