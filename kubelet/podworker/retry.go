package podworker

import (
	"sync"
	"time"

	"github.com/berth-dev/berth/kubelet/cri"
)

const (
	firstRetry = 250 * time.Millisecond
	maxRetry   = 10 * time.Second
)

// retries are the waits of steps that failed, by step. A nil map has none.
type retries map[string]retry

type retry struct {
	delay time.Duration
	until time.Time
}

func (r retries) done(step string) { delete(r, step) }

// clear ends all waits, keeping the delays: the cause of a failure may have gone.
func (r retries) clear() {
	for step, entry := range r {
		entry.until = time.Time{}
		r[step] = entry
	}
}

// waits reports whether a step that failed is not to be tried yet, and sees to it that it will be.
func (w *worker) waits(step string) bool {
	entry, ok := w.retries[step]
	if !ok || !w.m.deps.Clock.Now().Before(entry.until) {
		return false
	}
	w.lookAt(entry.until)
	return true
}

// failed notes that a step failed: it is tried again later, each time later still.
func (w *worker) failed(step string, err error) {
	entry := w.retries[step]
	entry.delay = min(max(2*entry.delay, firstRetry), maxRetry)
	entry.until = w.m.deps.Clock.Now().Add(entry.delay)
	w.retries[step] = entry
	w.lookAt(entry.until)
	w.log.Warn("a step failed", "step", step, "retry", entry.delay, "error", err)
}

// unless returns nil for errors that say that there is nothing left to be stopped or removed.
func unless(err error) error {
	if cri.IsNotFound(err) {
		return nil
	}
	return err
}

// set is a set of strings for several goroutines.
type set struct {
	mu   sync.Mutex
	have map[string]bool
}

func newSet() *set { return &set{have: map[string]bool{}} }

// add puts the string in and reports whether it was new.
func (s *set) add(v string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.have[v] {
		return false
	}
	s.have[v] = true
	return true
}
