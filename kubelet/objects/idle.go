package objects

import (
	"context"
	"fmt"
	"time"

	"k8s.io/utils/clock"
)

// idleTime is for how long a ConfigMap is followed after its last Pod, and maxIdle how many are: Pods come in turns, and
// those of one namespace all need its root certificate, so that the next needs no watch of its own.
const (
	idleTime = time.Minute
	maxIdle  = 64
)

// idle is an entry that no Pod has needed since a time.
type idle struct {
	entry *entry
	since time.Time
}

// rest has an entry that no Pod needs any more forgotten in a while, and reports whether that is worth it. A Secret is
// forgotten with its last Pod: nothing keeps what it holds in memory for longer. The caller holds mu.
func (m *Manager) rest(entry *entry) bool {
	if m.ctx == nil || entry.ref.Kind != KindConfigMap || !entry.changeable() {
		return false
	}
	entry.idleSince = m.clock.Now()
	m.idle = append(m.idle, idle{entry: entry, since: entry.idleSince})
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return true
}

// forgetIdle forgets entries that no Pod has needed for long enough, until ctx ends.
func (m *Manager) forgetIdle(ctx context.Context) {
	for {
		var timer clock.Timer
		var alarm <-chan time.Time
		if wait := m.expire(); wait > 0 {
			timer = m.clock.NewTimer(wait)
			alarm = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-m.wake:
		case <-alarm:
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// expire forgets the entries whose time is over, and returns how long the next one has; zero if there is none.
func (m *Manager) expire() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.idle) > 0 {
		first := m.idle[0]
		left := first.since.Add(idleTime).Sub(m.clock.Now())
		if left > 0 && len(m.idle) <= maxIdle {
			return left
		}
		m.idle = m.idle[1:]
		if len(first.entry.pods) == 0 && first.entry.idleSince.Equal(first.since) {
			m.forget(first.entry)
		}
	}
	m.idle = nil
	return 0
}

// abandon forgets the entry, which is not watched now, if no Pod needs it: the node would be refused. It reports whether
// it did.
func (m *Manager) abandon(entry *entry) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(entry.pods) > 0 {
		return false
	}
	m.forget(entry)
	return true
}

// forget ends an entry. It may have ended before. The caller holds mu.
func (m *Manager) forget(entry *entry) {
	if m.entries[entry.ref] == entry {
		delete(m.entries, entry.ref)
	}
	if entry.cancel != nil {
		entry.cancel()
	}
	entry.finish(fmt.Errorf("get %s: no pod on this node needs it any more", entry.ref))
}
