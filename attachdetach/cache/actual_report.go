package cache

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// markStatusDirty records that the node's status must be written. The caller holds mu.
func (a *Actual) markStatusDirty(node types.NodeName) {
	if _, ok := a.statusDirty[node]; !ok {
		a.statusDirty[node] = struct{}{}
		a.subscribers.notify(VolumeNode{Node: node})
	}
}

// setReported adds the attachment to the list that the node's status reports, or removes it. The caller holds mu.
func (a *Actual) setReported(at *attachment, node types.NodeName, reported bool) {
	if at.reported != reported {
		at.reported = reported
		a.markStatusDirty(node)
	}
}

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

// GetVolumesToReportAttached implements ActualStateOfWorld.
func (a *Actual) GetVolumesToReportAttached() map[types.NodeName][]corev1.AttachedVolume {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make(map[types.NodeName][]corev1.AttachedVolume, len(a.statusDirty))
	for node := range a.statusDirty {
		all[node] = a.takeReport(node)
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
	return true, a.takeReport(node)
}

// takeReport returns the volumes that the node's status should list, and clears the flag. The caller holds mu.
func (a *Actual) takeReport(node types.NodeName) []corev1.AttachedVolume {
	delete(a.statusDirty, node)
	if entry := a.nodes[node]; entry != nil {
		entry.writing = true
	}
	return a.reportedVolumes(node)
}

// GetNodesToUpdateStatusFor implements ActualStateOfWorld.
func (a *Actual) GetNodesToUpdateStatusFor() []types.NodeName {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Sorted(maps.Keys(a.statusDirty))
}

// reportedVolumes returns the volumes that the node's status should list, sorted so that equal lists have equal bytes. The
// caller holds mu.
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

// ReconcileReported flags the node if seen, the list of its status, differs from what the status should list.
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

// ForgetNode ends the write of the node's status, which has succeeded or is not necessary, and forgets the node if nothing is
// attached to it.
func (a *Actual) ForgetNode(node types.NodeName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if entry := a.nodes[node]; entry != nil {
		entry.writing = false
	}
	a.prune(node)
}
