package objects

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/clock"
)

// idleTimeout is for how long a ConfigMap is followed after its last Pod, and maxIdle how many are: Pods come in turns, and
// those of one namespace all need its root certificate, so that the next needs no watch of its own.
const (
	idleTimeout = time.Minute
	maxIdle     = 64
)

// idleEntry is an entry that no Pod has needed since a time.
type idleEntry struct {
	entry *entry
	since time.Time
}

// keepIdle has an entry that no Pod needs any more forgotten in a while, and reports whether that is worth it. A Secret is
// forgotten with its last Pod: nothing keeps what it holds in memory for longer. The caller holds mu.
func (m *Manager) keepIdle(entry *entry) bool {
	if m.ctx == nil || entry.ref.Kind != KindConfigMap || !entry.isMutable() {
		return false
	}
	entry.idleSince = m.clock.Now()
	m.idleEntries = append(m.idleEntries, idleEntry{entry: entry, since: entry.idleSince})
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return true
}

// runIdleExpiry forgets entries that no Pod has needed for long enough, until ctx ends.
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
		case <-m.wake:
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

// expireIdle forgets the entries whose time is over, and returns how long the next one has; zero if there is none.
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

// evictUnused forgets the entry, which is not watched now, if no Pod needs it: the node would be refused. It reports whether
// it did.
func (m *Manager) evictUnused(entry *entry) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(entry.pods) > 0 {
		return false
	}
	m.remove(entry)
	return true
}

// remove ends an entry. It may have ended before. The caller holds mu.
func (m *Manager) remove(entry *entry) {
	if m.entries[entry.ref] == entry {
		delete(m.entries, entry.ref)
	}
	if entry.cancel != nil {
		entry.cancel()
	}
	entry.fail(fmt.Errorf("get %s: no pod on this node needs it any more", entry.ref))
}
