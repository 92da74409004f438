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
	// conflictBackoffMin and conflictBackoffMax bound the waits before a status is put right that somebody else keeps changing.
	conflictBackoffMin = time.Second
	conflictBackoffMax = time.Minute
	// conflictsBeforeEvent is how many times a status is put right in a row before that is told.
	conflictsBeforeEvent = 3
)

// statusConflict keeps the writer from quarrelling. What others change in the status is put right at once; but if they change
// it again and again, as a second node agent of the same name does, two writers that answer each other's events would
// keep the API server busy with nothing else.
type statusConflict struct {
	lastWritten *corev1.NodeStatus // what of the status is ours, as it was last written
	notBefore   time.Time          // nothing is put right before
	backoff     time.Duration
	count       int // of corrections in a row
}

// delay tells for how long a write has to wait. Only corrections wait: of a status that others changed although nothing
// has changed here since it was last written.
func (c *statusConflict) delay(ours *corev1.NodeStatus, now time.Time) time.Duration {
	if c.lastWritten == nil || !equality.Semantic.DeepEqual(c.lastWritten, ours) {
		return 0
	}
	return max(0, c.notBefore.Sub(now))
}

// record notes a write, and reports whether it is the one after which it has to be told that there is another writer.
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

// reportConflict says that somebody else writes this node's status, and in which of its fields.
func (m *Manager) reportConflict(found, ours *corev1.NodeStatus) {
	fields := differingFields(found, ours)
	m.deps.Logger.Warn("somebody else keeps changing the node's status: is there a second kubelet of this name?",
		"node", m.config.Name, "fields", fields, "retry", conflictBackoffMax)
	if m.deps.Recorder != nil {
		m.deps.Recorder.Eventf(Reference(m.config.Name), corev1.EventTypeWarning, "NodeStatusContested",
			"Somebody else keeps changing the status of node %s (%s). If two kubelets run under this name, end one of them or give it another name (--node-name)",
			m.config.Name, strings.Join(fields, ", "))
	}
}

// differingFields names the fields of two statuses that are not the same, but for the heartbeats.
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
