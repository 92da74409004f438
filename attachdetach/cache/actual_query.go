package cache

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/volume/operationexecutor"
)

// RemoveVolumeFromReportAsAttached implements operationexecutor.ActualStateOfWorldAttacherUpdater.
func (a *Actual) RemoveVolumeFromReportAsAttached(name corev1.UniqueVolumeName, node types.NodeName) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.volumes[name][node]
	if at == nil || !at.reported {
		return fmt.Errorf("remove volume %q from the list of node %q: it is not on it", name, node)
	}
	a.setReported(at, node, false)
	return nil
}

// AddVolumeToReportAsAttached implements operationexecutor.ActualStateOfWorldAttacherUpdater.
func (a *Actual) AddVolumeToReportAsAttached(name corev1.UniqueVolumeName, node types.NodeName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := a.volumes[name][node]; at != nil {
		a.setReported(at, node, true)
	}
}

// SetVolumesMountedByNode implements ActualStateOfWorld. It costs as much as is mounted and attached on the node.
func (a *Actual) SetVolumesMountedByNode(names []corev1.UniqueVolumeName, node types.NodeName) {
	inUse := make(map[corev1.UniqueVolumeName]struct{}, len(names))
	for _, name := range names {
		inUse[name] = struct{}{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	entry := a.nodes[node]
	if entry == nil {
		return
	}
	for name, at := range entry.volumes {
		if _, mounted := inUse[name]; at.mounted != mounted {
			at.mounted = mounted
			a.subscribers.notify(VolumeNode{name, node})
		}
	}
}

// SetVolumeMountedByNode takes over whether the node says that it has one volume mounted. An unknown one does no harm.
func (a *Actual) SetVolumeMountedByNode(name corev1.UniqueVolumeName, node types.NodeName, mounted bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := a.volumes[name][node]; at != nil && at.mounted != mounted {
		at.mounted = mounted
		a.subscribers.notify(VolumeNode{name, node})
	}
}

// SetNodeStatusUpdateNeeded implements ActualStateOfWorld.
func (a *Actual) SetNodeStatusUpdateNeeded(node types.NodeName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.nodes[node] == nil {
		a.logger.Debug("no volumes are known of the node whose status should be written", "node", node)
		return
	}
	a.markStatusDirty(node)
}

// ResetDetachRequestTime implements ActualStateOfWorld.
func (a *Actual) ResetDetachRequestTime(name corev1.UniqueVolumeName, node types.NodeName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := a.volumes[name][node]; at != nil {
		at.detachRequested = time.Time{}
	}
}

// SetDetachRequestTime implements ActualStateOfWorld.
func (a *Actual) SetDetachRequestTime(name corev1.UniqueVolumeName, node types.NodeName) (time.Duration, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.volumes[name][node]
	if at == nil {
		return 0, fmt.Errorf("stamp detach request: volume %q is no longer attached to the node %q", name, node)
	}
	if at.detachRequested.IsZero() {
		at.detachRequested = a.clock.Now()
	}
	return a.clock.Since(at.detachRequested), nil
}

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

// export makes the copy that callers get. The caller holds mu.
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

// GetVolumesToReportAttached implements ActualStateOfWorld.
func (a *Actual) GetVolumesToReportAttached() map[types.NodeName][]corev1.AttachedVolume {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make(map[types.NodeName][]corev1.AttachedVolume, len(a.statusDirty))
	for node := range a.statusDirty {
		all[node] = a.reportedVolumes(node)
		delete(a.statusDirty, node)
	}
	return all
}

// GetVolumesToReportAttachedForNode implements ActualStateOfWorld.
func (a *Actual) GetVolumesToReportAttachedForNode(node types.NodeName) (bool, []corev1.AttachedVolume) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.statusDirty[node]; !ok {
		return false, nil
	}
	delete(a.statusDirty, node)
	return true, a.reportedVolumes(node)
}

// GetNodesToUpdateStatusFor implements ActualStateOfWorld.
func (a *Actual) GetNodesToUpdateStatusFor() []types.NodeName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Sorted(maps.Keys(a.statusDirty))
}

// reportedVolumes is what the node's status should say, sorted so that the same list is the same bytes. The node's entry is kept,
// so that the list can be flagged again should writing it fail. The caller holds mu.
func (a *Actual) reportedVolumes(node types.NodeName) []corev1.AttachedVolume {
	volumes := []corev1.AttachedVolume{}
	if entry := a.nodes[node]; entry != nil {
		for name, at := range entry.volumes {
			if at.reported {
				volumes = append(volumes, corev1.AttachedVolume{Name: name, DevicePath: at.devicePath})
			}
		}
	}
	slices.SortFunc(volumes, byName)
	return volumes
}

func byName(x, y corev1.AttachedVolume) int { return strings.Compare(string(x.Name), string(y.Name)) }

// ReconcileReported flags the node if its status lists something else than what should be there. The given list is what the
// status of a node was seen to be; it is not kept.
func (a *Actual) ReconcileReported(node types.NodeName, seen []corev1.AttachedVolume) {
	a.mu.Lock()
	defer a.mu.Unlock()
	want := a.reportedVolumes(node)
	sorted := slices.SortedFunc(slices.Values(seen), byName)
	if slices.Equal(want, sorted) {
		return
	}
	if a.nodes[node] == nil {
		a.nodes[node] = &nodeEntry{volumes: make(map[corev1.UniqueVolumeName]*attachment)}
	}
	a.markStatusDirty(node)
}

// ForgetNode drops what is left of a node whose status has been written, or that is gone, if nothing is attached to it.
func (a *Actual) ForgetNode(node types.NodeName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.prune(node)
}
