package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// CredentialProviders holds the metrics of credential provider plugins.
type CredentialProviders struct {
	errors   *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewCredentialProviders registers the metrics. configHash is the hash of the providers' configuration.
func NewCredentialProviders(registry prometheus.Registerer, configHash string) *CredentialProviders {
	p := &CredentialProviders{
		errors: counters("credential_provider_plugin_errors_total", "Number of errors from credential provider plugin", "plugin_name"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_credential_provider_plugin_duration", Help: "Duration of execution in seconds for credential provider plugin",
		}, []string{"plugin_name"}),
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kubelet_credential_provider_config_info", Help: "The configuration of credential providers that is in force, by its hash. The value is always 1.",
		ConstLabels: prometheus.Labels{"hash": configHash},
	})
	info.Set(1)
	registry.MustRegister(p.errors, p.duration, info)
	return p
}

// Ran records a run of a plugin.
func (p *CredentialProviders) Ran(plugin string, took time.Duration, err error) {
	p.duration.WithLabelValues(plugin).Observe(took.Seconds())
	if err != nil {
		p.errors.WithLabelValues(plugin).Inc()
	}
}
