package cache

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/volume/operationexecutor"
)

// GetAttachState implements ActualStateOfWorld.
func (a *Actual) GetAttachState(name corev1.UniqueVolumeName, node types.NodeName) AttachState {
	a.mu.RLock()
	defer a.mu.RUnlock()
	switch at := a.volumes[name][node]; {
	case at == nil:
		return AttachStateDetached
	case at.confirmed:
		return AttachStateAttached
	}
	return AttachStateUncertain
}

// GetAttachedVolume implements ActualStateOfWorld.
func (a *Actual) GetAttachedVolume(name corev1.UniqueVolumeName, node types.NodeName) (AttachedVolume, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	at := a.volumes[name][node]
	if at == nil {
		return AttachedVolume{}, false
	}
	return at.export(name, node), true
}

// export returns the copy that callers get. The caller holds mu.
func (at *attachment) export(name corev1.UniqueVolumeName, node types.NodeName) AttachedVolume {
	return AttachedVolume{
		AttachedVolume: operationexecutor.AttachedVolume{
			VolumeName: name, VolumeSpec: at.spec, NodeName: node, DevicePath: at.devicePath, Generation: at.generation,
		},
		Confirmed: at.confirmed, MountedByNode: at.mounted, DetachRequestedTime: at.detachRequested, Since: at.since,
	}
}

// GetAttachedVolumes implements ActualStateOfWorld.
func (a *Actual) GetAttachedVolumes() []AttachedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	all := make([]AttachedVolume, 0, len(a.volumes))
	for name, byNode := range a.volumes {
		for node, at := range byNode {
			all = append(all, at.export(name, node))
		}
	}
	return all
}

// GetAttachedVolumesForNode implements ActualStateOfWorld.
func (a *Actual) GetAttachedVolumesForNode(node types.NodeName) []AttachedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	entry := a.nodes[node]
	if entry == nil {
		return nil
	}
	all := make([]AttachedVolume, 0, len(entry.volumes))
	for name, at := range entry.volumes {
		all = append(all, at.export(name, node))
	}
	return all
}

// GetAttachedVolumesPerNode implements ActualStateOfWorld.
func (a *Actual) GetAttachedVolumesPerNode() map[types.NodeName][]operationexecutor.AttachedVolume {
	a.mu.RLock()
	defer a.mu.RUnlock()
	all := make(map[types.NodeName][]operationexecutor.AttachedVolume)
	for node, entry := range a.nodes {
		for name, at := range entry.volumes {
			if at.confirmed {
				all[node] = append(all[node], at.export(name, node).AttachedVolume)
			}
		}
	}
	return all
}

// GetNodesForAttachedVolume implements ActualStateOfWorld.
func (a *Actual) GetNodesForAttachedVolume(name corev1.UniqueVolumeName) []types.NodeName {
	return a.nodesFor(name, func(at *attachment) bool { return at.confirmed })
}

// GetNodesForPossiblyAttachedVolume implements ActualStateOfWorld.
func (a *Actual) GetNodesForPossiblyAttachedVolume(name corev1.UniqueVolumeName) []types.NodeName {
	return a.nodesFor(name, func(*attachment) bool { return true })
}

func (a *Actual) nodesFor(name corev1.UniqueVolumeName, matches func(*attachment) bool) []types.NodeName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var nodes []types.NodeName
	for node, at := range a.volumes[name] {
		if matches(at) {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// Counts is how many attachments there are, by plugin. It costs as much as there are plugins.
func (a *Actual) Counts() Count {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return maps.Clone(a.total)
}
