package objects

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/clock"
)

// idleTimeout is how long a ConfigMap is watched after its last Pod, and maxIdle the number of such ConfigMaps: Pods
// come one after the other, and all Pods of a namespace need its root certificate, so that the next one needs no new
// watch.
const (
	idleTimeout = time.Minute
	maxIdle     = 64
)

// idleEntry is an entry that no Pod has needed since a time.
type idleEntry struct {
	entry *entry
	since time.Time
}

// keepIdle keeps the watch of an entry that no Pod needs for a while and reports whether it does so. A Secret is never
// kept: its content stays in memory no longer than its Pods need it. The caller holds mu.
func (m *Manager) keepIdle(entry *entry) bool {
	if m.ctx == nil || entry.ref.Kind != KindConfigMap || !entry.isMutable() {
		return false
	}
	entry.idleSince = m.clock.Now()
	m.idleEntries = append(m.idleEntries, idleEntry{entry: entry, since: entry.idleSince})
	m.wake.Notify()
	return true
}

// runIdleExpiry removes idle entries when their time is over, until ctx ends.
func (m *Manager) runIdleExpiry(ctx context.Context) {
	for {
		var timer clock.Timer
		var timerC <-chan time.Time
		if wait := m.expireIdle(); wait > 0 {
			timer = m.clock.NewTimer(wait)
			timerC = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-m.wake.C():
		case <-timerC:
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// expireIdle removes the idle entries whose time is over and returns the time left for the next one; zero if there is
// none.
func (m *Manager) expireIdle() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.idleEntries) > 0 {
		first := m.idleEntries[0]
		left := first.since.Add(idleTimeout).Sub(m.clock.Now())
		if left > 0 && len(m.idleEntries) <= maxIdle {
			return left
		}
		m.idleEntries = m.idleEntries[1:]
		if len(first.entry.pods) == 0 && first.entry.idleSince.Equal(first.since) {
			m.remove(first.entry)
		}
	}
	m.idleEntries = nil
	return 0
}

// evictUnused removes the entry if no Pod needs it, which it reports: without a Pod the node would be refused a new
// watch.
func (m *Manager) evictUnused(entry *entry) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(entry.pods) > 0 {
		return false
	}
	m.remove(entry)
	return true
}

// remove ends the entry's watch and removes it. It may be called twice. The caller holds mu.
func (m *Manager) remove(entry *entry) {
	if m.entries[entry.ref] == entry {
		delete(m.entries, entry.ref)
	}
	if entry.cancel != nil {
		entry.cancel()
	}
	entry.fail(fmt.Errorf("get %s: no Pod on this node needs it any more", entry.ref))
}
