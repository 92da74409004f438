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
	// contestMin and contestMax bound the waits before a status is put right that somebody else keeps changing.
	contestMin = time.Second
	contestMax = time.Minute
	// contestTold is how many times a status is put right in a row before that is told.
	contestTold = 3
)

// contest keeps the writer from quarrelling. What others change in the status is put right at once; but if they change
// it again and again, as a second node agent of the same name does, two writers that answer each other's events would
// keep the API server busy with nothing else.
type contest struct {
	ours  *corev1.NodeStatus // what of the status is ours, as it was last written
	until time.Time          // nothing is put right before
	wait  time.Duration
	count int // of corrections in a row
}

// hold tells for how long a write has to wait. Only corrections wait: of a status that others changed although nothing
// has changed here since it was last written.
func (c *contest) hold(ours *corev1.NodeStatus, now time.Time) time.Duration {
	if c.ours == nil || !equality.Semantic.DeepEqual(c.ours, ours) {
		return 0
	}
	return max(0, c.until.Sub(now))
}

// wrote notes a write, and reports whether it is the one after which it has to be told that there is another writer.
func (c *contest) wrote(ours *corev1.NodeStatus, now time.Time) (tell bool) {
	correction := c.ours != nil && equality.Semantic.DeepEqual(c.ours, ours)
	c.ours = ours
	if !correction {
		return false
	}
	if now.Sub(c.until) > 2*contestMax {
		c.wait, c.count = 0, 0
	}
	c.wait = min(max(2*c.wait, contestMin), contestMax)
	c.until = now.Add(c.wait)
	c.count++
	return c.count == contestTold
}

// tellContest says that somebody else writes this node's status, and in which of its fields.
func (m *Manager) tellContest(found, ours *corev1.NodeStatus) {
	fields := differing(found, ours)
	m.deps.Logger.Warn("somebody else keeps changing the node's status: is there a second kubelet of this name?",
		"node", m.cfg.Name, "fields", fields, "retry", contestMax)
	if m.deps.Recorder != nil {
		m.deps.Recorder.Eventf(Reference(m.cfg.Name), corev1.EventTypeWarning, "NodeStatusContested",
			"Somebody else keeps changing the status of node %s (%s). If two kubelets run under this name, end one of them or give it another name (--node-name)",
			m.cfg.Name, strings.Join(fields, ", "))
	}
}

// differing names the fields of two statuses that are not the same, but for the heartbeats.
func differing(a, b *corev1.NodeStatus) []string {
	var fields [2]map[string]any
	for i, status := range []*corev1.NodeStatus{plain(a), plain(b)} {
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
