package devices

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Device is a device of a container or of the node.
type Device struct {
	Resource, ID string
	// Nodes are the NUMA nodes that it is on.
	Nodes []int
}

// Of returns the devices that a container has, sorted.
func (m *Manager) Of(uid, container string) []Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Device
	for _, name := range sortedKeys(m.given[uid][container]) {
		g := m.given[uid][container][name]
		for _, id := range g.devices.ids() {
			d := Device{Resource: name, ID: id}
			for node, list := range g.devices {
				if node != noNode && slices.Contains(list, id) {
					d.Nodes = append(d.Nodes, int(node))
				}
			}
			slices.Sort(d.Nodes)
			out = append(out, d)
		}
	}
	return out
}

// Healthy returns all healthy devices of the node, sorted.
func (m *Manager) Healthy() []Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []Device
	for _, name := range sortedKeys(m.pools) {
		for _, id := range m.pools[name].healthyIDs() {
			out = append(out, Device{Resource: name, ID: id, Nodes: m.pools[name].devices[id].nodes})
		}
	}
	return out
}

// Status returns the health of a container's devices, for the Pod's status. A device that no plugin has reported yet counts as
// healthy.
func (m *Manager) Status(uid, container string) []corev1.ResourceStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []corev1.ResourceStatus
	for _, name := range sortedKeys(m.given[uid][container]) {
		of := corev1.ResourceStatus{Name: corev1.ResourceName(name)}
		for _, id := range m.given[uid][container][name].devices.ids() {
			health := corev1.ResourceHealthStatusHealthy
			if p := m.pools[name]; p != nil {
				if d, known := p.devices[id]; known && !d.healthy {
					health = corev1.ResourceHealthStatusUnhealthy
				}
			}
			of.Resources = append(of.Resources, corev1.ResourceHealth{ResourceID: corev1.ResourceID(id), Health: health})
		}
		out = append(out, of)
	}
	return out
}
