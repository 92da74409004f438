package podworker

import (
	"fmt"
	"sync"
	"time"

	"github.com/berth-dev/berth/kubelet/cri"
)

const (
	initialRetryDelay = 250 * time.Millisecond
	maxRetryDelay     = 10 * time.Second
)

// retries are the backoffs of steps that failed, by step. A nil map has none.
type retries map[string]retry

type retry struct {
	delay time.Duration
	until time.Time
}

func (r retries) done(step string) { delete(r, step) }

// clear ends all waits and keeps the delays: the cause of a failure may be gone.
func (r retries) clear() {
	for step, entry := range r {
		entry.until = time.Time{}
		r[step] = entry
	}
}

// backingOff reports whether a step that failed must still wait, and schedules a sync for the end of the wait.
func (w *worker) backingOff(step string) bool {
	entry, ok := w.retries[step]
	if !ok || !w.m.deps.Clock.Now().Before(entry.until) {
		return false
	}
	w.wakeAt(entry.until)
	return true
}

// recordFailure records that a step failed. Its delay doubles with each failure.
func (w *worker) recordFailure(step string, err error) {
	entry := w.retries[step]
	entry.delay = min(max(2*entry.delay, initialRetryDelay), maxRetryDelay)
	entry.until = w.m.deps.Clock.Now().Add(entry.delay)
	w.retries[step] = entry
	w.wakeAt(entry.until)
	if len(w.syncWaiters) > 0 {
		w.syncErrors = append(w.syncErrors, fmt.Errorf("%s: %w", step, err))
	}
	w.logger.Warn("Pod sync step failed; will retry", "step", step, "retry", entry.delay, "error", err)
}

// ignoreNotFound returns nil for an error that says that there is nothing to stop or remove.
func ignoreNotFound(err error) error {
	if cri.IsNotFound(err) {
		return nil
	}
	return err
}

// stringSet is a set of strings that several goroutines may use.
type stringSet struct {
	mu   sync.Mutex
	have map[string]bool
}

func newStringSet() *stringSet { return &stringSet{have: map[string]bool{}} }

// remove removes the string.
func (s *stringSet) remove(v string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.have, v)
}

// add adds the string and reports whether it was new.
func (s *stringSet) add(v string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.have[v] {
		return false
	}
	s.have[v] = true
	return true
}
