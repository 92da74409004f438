package podcertificate

import "github.com/prometheus/client_golang/prometheus"

var statesDesc = prometheus.NewDesc("kubelet_podcertificate_states",
	"Gauge vector reporting the number of pod certificate projected volume sources, faceted by signer_name and state.",
	[]string{"signer_name", "state"}, nil)

var _ prometheus.Collector = (*Manager)(nil)

// Describe implements prometheus.Collector.
func (m *Manager) Describe(out chan<- *prometheus.Desc) { out <- statesDesc }

// Collect implements prometheus.Collector: the number of certificates for each signer and state.
func (m *Manager) Collect(out chan<- prometheus.Metric) {
	for f, count := range m.counts() {
		out <- prometheus.MustNewConstMetric(statesDesc, prometheus.GaugeValue, float64(count), f.signer, f.state)
	}
}

// facet is the labels of the metric of the certificates.
type facet struct{ signer, state string }

func (m *Manager) counts() map[facet]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts, now := map[facet]int{}, m.deps.Clock.Now()
	for _, e := range m.entries {
		counts[facet{e.source.SignerName, e.state(now)}]++
	}
	return counts
}
