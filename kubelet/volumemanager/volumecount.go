package volumemanager

import (
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/volume"
)

// Upstream's words for the states of volumes, and for a plugin that is not known: which one a claim needs is found out
// when it is mounted.
const (
	stateActual   = "actual_state_of_world"
	stateDesired  = "desired_state_of_world"
	pluginUnknown = "N/A"
)

var totalVolumesDesc = prometheus.NewDesc("volume_manager_total_volumes", "Volumes of Pods that are set up, and that should be, by plugin.",
	[]string{"plugin_name", "state"}, nil)

// volumeKind is what volumes are counted by.
type volumeKind struct{ plugin, state string }

// countVolumes counts the volumes of all Pods. Those of a Pod that ends are not desired any more, and stay counted as set up
// until all of them are taken down: one that cannot be is what the count is for.
func (m *Manager) countVolumes() map[volumeKind]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := make(map[volumeKind]int)
	for _, state := range m.pods {
		for _, held := range []map[string]*mountedVolume{state.mounted, state.terminating} {
			for _, mounted := range held {
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

// usedPluginName is the plugin of a volume that is wanted. The caller holds mu.
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
