package podworker

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/kubelet/status"
)

const opDiscard = "discard"

// podEviction is how a worker ends its Pod for the sake of others.
type podEviction struct {
	// discard removes the containers of the ended Pod; discarding says that it has begun, and that the status is final.
	discard, discarding, discarded bool
	// waiters are called when nothing of the Pod runs or occupies the node any more.
	waiters []func()
}

// Evict ends a Pod with phase Failed and the given reason, unless it has failed already, and reports whether the Pod has a
// worker. grace, in seconds, may shorten its time to end. An eviction with a Detail is counted by it.
func (m *Manager) Evict(uid types.UID, failure status.Failure, grace *int64) bool {
	return m.EvictThen(uid, failure, grace, nil)
}

// EvictThen is Evict, and calls done, which must not block, when nothing of the Pod runs any more and its volumes, and with
// failure.Discard its containers, are removed. done may be nil; it is not called if there is no worker, or if the kubelet ends
// before.
func (m *Manager) EvictThen(uid types.UID, failure status.Failure, grace *int64, done func()) bool {
	return m.postTo(uid, func(w *worker) { w.evict(failure, grace, done) })
}

// ActivePods returns the Pods that use resources of the node: those that were admitted and have not ended.
func (m *Manager) ActivePods() []*corev1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.activePodsExcept(nil)
}

// DiscardEnded removes the containers of the Pods that have ended, with their logs. It returns when that was tried for all.
func (m *Manager) DiscardEnded(ctx context.Context) error {
	for _, done := range m.postDiscards() {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("remove the containers of ended Pods: %w", context.Cause(ctx))
		}
	}
	return nil
}

// postDiscards has the workers of ended Pods remove the containers, and returns channels that are closed when that was tried. It posts
// while it holds mu: a worker that is no longer known does not read its inbox any more.
func (m *Manager) postDiscards() (pending []<-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.workers {
		if !w.released.Load() {
			continue
		}
		done := make(chan struct{})
		pending = append(pending, done)
		w.post(func() {
			w.eviction.discard = true
			w.eviction.waiters = append(w.eviction.waiters, func() { close(done) })
		})
	}
	return pending
}

// evict makes the Pod end as failed. It runs in the worker's goroutine.
func (w *worker) evict(failure status.Failure, grace *int64, done func()) {
	if done != nil {
		w.eviction.waiters = append(w.eviction.waiters, done)
	}
	w.eviction.discard = w.eviction.discard || failure.Discard
	if w.failure != nil || w.state == terminated {
		return
	}
	w.failure, w.graceOverride = &failure, grace
	if failure.Detail != "" {
		w.m.deps.Metrics.Evicted(failure.Detail)
	}
}

// discardContainers starts to remove the containers of the ended Pod, if that was requested. Its status is written before.
func (w *worker) discardContainers(ctx context.Context) {
	e := &w.eviction
	if !e.discard || e.discarded {
		w.notifyEvicted()
		return
	}
	if w.ops[opDiscard] != nil || w.backingOff(opDiscard) {
		return
	}
	if !e.discarding {
		w.report()
		e.discarding = true
	}
	held := w.runtime
	w.startOp(ctx, opDiscard, op{}, func(ctx context.Context) func() {
		var errs []error
		for _, c := range held.Containers {
			errs = append(errs, w.removeContainer(ctx, c))
		}
		err := errors.Join(errs...)
		return func() {
			if err != nil {
				w.failStep(ctx, opDiscard, err)
			} else {
				w.retries.done(opDiscard)
				e.discarded = true
			}
			w.notifyEvicted()
		}
	})
}

// notifyEvicted calls those who wait for the end of the Pod.
func (w *worker) notifyEvicted() {
	for _, done := range w.eviction.waiters {
		done()
	}
	w.eviction.waiters = nil
}
