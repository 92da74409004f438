package podworker

import (
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/wakeup"
)

// Signals carries what other components observe to the workers of a Manager. It is created before those components and
// before the Manager, so that neither needs the other's constructor to have run. Repeated signals about one Pod are
// merged until the Manager handles them. Its methods do not block and are safe for concurrent use.
type Signals struct {
	pending wakeup.Signal
	// network is why the runtime has no network for new sandboxes; nil if it has one.
	network atomic.Pointer[string]

	mu      sync.Mutex // guards signals
	signals signalBatch
}

// signalBatch is what was signalled since the Manager handled the batch before.
type signalBatch struct {
	wake, changed map[types.UID]struct{}
	// wakeAll wakes all workers; reconnected makes them read the runtime's state first.
	wakeAll, reconnected bool
	// syncAll makes all workers sync again, and wait out their backoffs.
	syncAll bool
	// pods are the Pods that the runtime has, if listed is set.
	pods   []types.UID
	listed bool
	pings  []chan struct{}
}

// NewSignals returns Signals without any signal.
func NewSignals() *Signals { return &Signals{pending: wakeup.NewSignal()} }

// Wake makes a Pod's worker sync again, without waiting out its backoffs: a probe has a new result, or an object that
// the Pod refers to has changed.
func (s *Signals) Wake(uid types.UID) {
	s.add(func(b *signalBatch) {
		if b.wake == nil {
			b.wake = map[types.UID]struct{}{}
		}
		b.wake[uid] = struct{}{}
	})
}

// RuntimeChanged reports that a Pod's state in the runtime may have changed.
func (s *Signals) RuntimeChanged(uid types.UID) {
	s.add(func(b *signalBatch) {
		if b.changed == nil {
			b.changed = map[types.UID]struct{}{}
		}
		b.changed[uid] = struct{}{}
	})
}

// RuntimePods reports which Pods the runtime has. Those without a worker are orphans and are stopped, as soon as all
// sources of Pods are ready.
func (s *Signals) RuntimePods(uids []types.UID) {
	s.add(func(b *signalBatch) { b.pods, b.listed = uids, true })
}

// RuntimeConnected reports that the runtime can be reached again: all workers read its state.
func (s *Signals) RuntimeConnected() {
	s.add(func(b *signalBatch) { b.wakeAll, b.reconnected = true, true })
}

// PoolChanged reports that the containers without CPUs of their own run on other CPUs from now on.
func (s *Signals) PoolChanged() { s.add(func(b *signalBatch) { b.syncAll = true }) }

// SetNetwork reports why the runtime has no network for new sandboxes, or with nil that it has one. Pods on the host's
// network are started either way; the others wait, with an event that gives the reason.
func (s *Signals) SetNetwork(missing error) {
	if missing != nil {
		reason := missing.Error()
		s.network.Store(&reason)
		return
	}
	if s.network.Swap(nil) != nil {
		s.add(func(b *signalBatch) { b.wakeAll = true })
	}
}

// Ping returns a channel that is closed when the Manager has handled all signals until now.
func (s *Signals) Ping() <-chan struct{} {
	handled := make(chan struct{})
	s.add(func(b *signalBatch) { b.pings = append(b.pings, handled) })
	return handled
}

func (s *Signals) add(change func(b *signalBatch)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.signals)
	s.pending.Notify()
}

// take returns the pending signals and clears them.
func (s *Signals) take() signalBatch {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch := s.signals
	s.signals = signalBatch{}
	return batch
}

// handleSignals passes the pending signals to the workers.
func (m *Manager) handleSignals() {
	batch := m.deps.Signals.take()
	m.mu.Lock()
	defer m.mu.Unlock()
	if batch.wakeAll {
		for _, w := range m.workers {
			w.post(func() {
				w.dirty = w.dirty || batch.reconnected
				w.retries.clear()
			})
		}
	}
	if batch.syncAll {
		for _, w := range m.workers {
			w.post(func() {})
		}
	}
	for uid := range batch.changed {
		if w := m.workers[uid]; w != nil {
			w.post(func() { w.eventPending = true })
		}
	}
	for uid := range batch.wake {
		if w := m.workers[uid]; w != nil {
			w.post(func() { w.retries.clear() })
		}
	}
	if batch.listed {
		m.runtimePods, m.listed = batch.pods, true
		m.stopOrphans()
	}
	for _, handled := range batch.pings {
		close(handled)
	}
}
