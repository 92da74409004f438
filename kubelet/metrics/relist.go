package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// Relist holds the metrics of relists, the full listings of the runtime's Pods.
type Relist struct {
	clock              clock.PassiveClock
	duration, interval prometheus.Histogram
	lastSeen           prometheus.Gauge

	mu   sync.Mutex // guards last
	last time.Time
}

// NewRelist registers the metrics of relists.
func NewRelist(registry prometheus.Registerer, clock clock.PassiveClock) *Relist {
	m := &Relist{
		clock:    clock,
		duration: histogram("pleg_relist_duration_seconds", "Duration in seconds of listing all pods of the runtime.", fastBuckets()),
		interval: histogram("pleg_relist_interval_seconds", "Interval in seconds between two such lists; changes in between arrive as events.",
			prometheus.ExponentialBuckets(0.5, 2, 10)),
		lastSeen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kubelet_pleg_last_seen_seconds", Help: "Time of the last list of the runtime's pods, in seconds of the Unix epoch.",
		}),
	}
	registry.MustRegister(m.duration, m.interval, m.lastSeen)
	return m
}

// Observe records one relist.
func (m *Relist) Observe(took time.Duration) {
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
