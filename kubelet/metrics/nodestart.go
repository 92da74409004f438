package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// NodeStart holds the metrics of how long a new Node took to be ready. They are 0 for a Node that existed when the kubelet started.
type NodeStart struct {
	boot, kubelet                                                    time.Time
	preKubelet, preRegistration, registration, postRegistration, all prometheus.Gauge
}

// NewNodeStart registers the metrics. boot is when the machine was booted, zero if that is not known, and kubelet when the kubelet started.
func NewNodeStart(registry prometheus.Registerer, boot, kubelet time.Time) *NodeStart {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubelet_node_startup_" + name, Help: help})
		registry.MustRegister(g)
		return g
	}
	return &NodeStart{
		boot: boot, kubelet: kubelet,
		preKubelet:       gauge("pre_kubelet_duration_seconds", "Duration in seconds of node startup before the kubelet starts."),
		preRegistration:  gauge("pre_registration_duration_seconds", "Duration in seconds of node startup from the start of the kubelet to the first attempt to register the node."),
		registration:     gauge("registration_duration_seconds", "Duration in seconds of node startup during registration."),
		postRegistration: gauge("post_registration_duration_seconds", "Duration in seconds of node startup from the registration to the node being ready."),
		all:              gauge("duration_seconds", "Duration in seconds of node startup in total."),
	}
}

// Observe records when the registration of a new Node was first attempted, when it was registered, and when it was ready, zero if it is not yet.
func (s *NodeStart) Observe(attempted, registered, ready time.Time) {
	s.preRegistration.Set(attempted.Sub(s.kubelet).Seconds())
	s.registration.Set(registered.Sub(attempted).Seconds())
	if !s.boot.IsZero() {
		s.preKubelet.Set(s.kubelet.Sub(s.boot).Seconds())
	}
	if ready.IsZero() {
		return
	}
	s.postRegistration.Set(ready.Sub(registered).Seconds())
	if !s.boot.IsZero() {
		s.all.Set(ready.Sub(s.boot).Seconds())
	}
}
