package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

const (
	// conflictBackoffMin and conflictBackoffMax bound the wait before the status is corrected again when another client
	// keeps changing it.
	conflictBackoffMin = time.Second
	conflictBackoffMax = time.Minute
	// conflictsBeforeEvent is the number of corrections in a row after which the conflict is reported.
	conflictsBeforeEvent = 3
)

// statusConflict limits how often the status is corrected. A change by another client is corrected at once; but if it
// keeps changing the status, as a second kubelet with the same node name does, two writers that react to each other's
// writes would overload the API server.
type statusConflict struct {
	lastWritten *corev1.NodeStatus // the kubelet's own part of the status as last written
	notBefore   time.Time          // no correction before this time
	backoff     time.Duration
	count       int // number of corrections in a row
}

// delay returns how long a write must wait. Only corrections wait: writes of a status that another client changed
// although nothing has changed on this node since it was last written.
func (c *statusConflict) delay(ours *corev1.NodeStatus, now time.Time) time.Duration {
	if c.lastWritten == nil || !equality.Semantic.DeepEqual(c.lastWritten, ours) {
		return 0
	}
	return max(0, c.notBefore.Sub(now))
}

// record records a write and reports whether the conflict must be reported now.
func (c *statusConflict) record(ours *corev1.NodeStatus, now time.Time) (report bool) {
	correction := c.lastWritten != nil && equality.Semantic.DeepEqual(c.lastWritten, ours)
	c.lastWritten = ours
	if !correction {
		return false
	}
	if now.Sub(c.notBefore) > 2*conflictBackoffMax {
		c.backoff, c.count = 0, 0
	}
	c.backoff = min(max(2*c.backoff, conflictBackoffMin), conflictBackoffMax)
	c.notBefore = now.Add(c.backoff)
	c.count++
	return c.count == conflictsBeforeEvent
}

// reportConflict logs and records an event that another client keeps changing the node's status, and which fields.
func (m *Manager) reportConflict(found, ours *corev1.NodeStatus) {
	fields := differingFields(found, ours)
	m.deps.Logger.Warn("another client keeps changing the node's status; check for a second kubelet with this name",
		"node", m.config.Name, "fields", fields, "retry", conflictBackoffMax)
	m.events.record(corev1.EventTypeWarning, "NodeStatusContested",
		"Another client keeps changing the status of node %s (%s). If two kubelets run with this name, stop one of them or rename it (--node-name)",
		m.config.Name, strings.Join(fields, ", "))
}

// differingFields returns the names of the fields that differ between two statuses, heartbeats aside.
func differingFields(a, b *corev1.NodeStatus) []string {
	var fields [2]map[string]any
	for i, status := range []*corev1.NodeStatus{normalized(a), normalized(b)} {
		data, err := json.Marshal(status)
		if err == nil {
			err = json.Unmarshal(data, &fields[i])
		}
		if err != nil {
			return []string{fmt.Sprintf("fields that cannot be compared: %v", err)}
		}
	}
	names := maps.Clone(fields[0])
	maps.Copy(names, fields[1])
	maps.DeleteFunc(names, func(name string, _ any) bool { return reflect.DeepEqual(fields[0][name], fields[1][name]) })
	return slices.Sorted(maps.Keys(names))
}
