package volumemanager

import (
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/volume"
)

// The values of the label state, and of plugin_name for a plugin that is unknown: the plugin of a claim is known only
// when the volume is mounted.
const (
	stateActual   = "actual_state_of_world"
	stateDesired  = "desired_state_of_world"
	pluginUnknown = "N/A"
)

var totalVolumesDesc = prometheus.NewDesc("volume_manager_total_volumes",
	"Number of volumes of Pods, by plugin and by state: set up (actual) or used by a Pod (desired).",
	[]string{"plugin_name", "state"}, nil)

// volumeKind is the labels of a count.
type volumeKind struct{ plugin, state string }

// countVolumes counts the volumes of all Pods. The volumes of a Pod that ends are not desired any more; they count as
// actual until all of them are unmounted, so that the metric shows volumes that cannot be unmounted.
func (m *Manager) countVolumes() map[volumeKind]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := make(map[volumeKind]int)
	for _, state := range m.pods {
		for _, volumes := range []map[string]*mountedVolume{state.mounted, state.terminating} {
			for _, mounted := range volumes {
				counts[volumeKind{mounted.Spec.QualifiedPluginName(mounted.plugin.Name()), stateActual}]++
			}
		}
		select {
		case <-state.closing:
			continue
		default:
		}
		if state.pod == nil {
			continue
		}
		for _, v := range usedVolumes(state.pod) {
			counts[volumeKind{m.usedPluginName(state, v), stateDesired}]++
		}
	}
	return counts
}

// usedPluginName returns the qualified plugin name of a volume that a Pod uses. The caller holds mu.
func (m *Manager) usedPluginName(state *podState, v *corev1.Volume) string {
	if mounted := state.mounted[v.Name]; mounted != nil {
		return mounted.Spec.QualifiedPluginName(mounted.plugin.Name())
	}
	spec := volume.Spec{Name: v.Name, Volume: v}
	plugin, err := m.deps.Plugins.Find(spec)
	if err != nil {
		return pluginUnknown
	}
	return spec.QualifiedPluginName(plugin.Name())
}
