package pluginmanager

import "github.com/prometheus/client_golang/prometheus"

var pluginsDesc = prometheus.NewDesc("plugin_manager_total_plugins",
	"Number of plugins by socket and by state: registered (actual) or present in the directory (desired).",
	[]string{"socket_path", "state"}, nil)

var _ prometheus.Collector = (*Manager)(nil)

// Describe implements prometheus.Collector.
func (m *Manager) Describe(out chan<- *prometheus.Desc) { out <- pluginsDesc }

// Collect implements prometheus.Collector. A socket that is only desired is of a plugin that was rejected or does not respond.
func (m *Manager) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for path := range m.sockets {
		out <- prometheus.MustNewConstMetric(pluginsDesc, prometheus.GaugeValue, 1, path, "desired_state_of_world")
	}
	for path, registration := range m.registered {
		if registration.plugin.Name != "" {
			out <- prometheus.MustNewConstMetric(pluginsDesc, prometheus.GaugeValue, 1, path, "actual_state_of_world")
		}
	}
}
