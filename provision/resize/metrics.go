package resize

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics measures the calls of the driver, by outcome.
type metrics struct {
	*prometheus.HistogramVec
}

func newMetrics(driver string) *metrics {
	return &metrics{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Subsystem: "controller", Name: "persistentvolumeclaim_expand_duration_seconds",
		Help:        "Duration of ControllerExpandVolume calls, by outcome.",
		ConstLabels: prometheus.Labels{"driver": driver}, Buckets: prometheus.DefBuckets,
	}, []string{"outcome"})}
}

func (m *metrics) observe(took time.Duration, err error) {
	name := "success"
	if err != nil {
		name = [...]string{outcomeNotSent: "unsent", outcomeUnknown: "open", outcomeFinal: "final", outcomeInUse: "in_use", outcomeInfeasible: "infeasible"}[outcomeOf(err)]
	}
	m.WithLabelValues(name).Observe(took.Seconds())
}
