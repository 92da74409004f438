package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-dev/berth/kubelet/lifecycle"
)

// Hooks holds the metrics of containers' postStart and preStop hooks.
type Hooks struct{ fallbacks, cutShort prometheus.Counter }

var _ lifecycle.Metrics = (*Hooks)(nil)

// NewHooks registers the metrics of hooks.
func NewHooks(registry prometheus.Registerer) *Hooks {
	m := &Hooks{
		fallbacks: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_lifecycle_handler_http_fallbacks_total", Help: "Hooks that were to use HTTPS and succeeded over HTTP.",
		}),
		cutShort: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kubelet_sleep_action_terminated_early_total", Help: "Sleep hooks that ended before their time.",
		}),
	}
	registry.MustRegister(m.fallbacks, m.cutShort)
	return m
}

// HTTPFallback implements lifecycle.Metrics.
func (m *Hooks) HTTPFallback() { m.fallbacks.Inc() }

// SleepCutShort implements lifecycle.Metrics.
func (m *Hooks) SleepCutShort() { m.cutShort.Inc() }
