package podworker

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/kubelet/cm"
)

// classRequests is what the active Pods of the classes request together.
type classRequests struct {
	sum     cm.Requests
	changed wakeup.Signal // wakes syncClasses
}

// countRequests replaces the requests that are counted for a worker by those of the Pod, nil for a Pod that is not active.
// The caller holds mu.
func (m *Manager) countRequests(w *worker, pod *corev1.Pod) {
	var next cm.Requests
	if pod != nil {
		next = cm.RequestsOf(pod, m.config.CountMemory)
	}
	if next == w.counted {
		return
	}
	m.classes.sum = m.classes.sum.Replace(w.counted, next)
	w.counted = next
	m.classes.changed.Notify()
}

// syncClasses keeps the limits of the cgroups of the classes at the sums of the requests of the active Pods, until ctx ends.
// It waits until all sources have delivered their Pods, since a part of the sum would take CPU and memory from the Pods that
// run.
func (m *Manager) syncClasses(ctx context.Context) {
	var applied *cm.Requests
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.classes.changed.C():
		}
		m.mu.Lock()
		ready, sum := m.sourcesReady, m.classes.sum
		m.mu.Unlock()
		if !ready || applied != nil && *applied == sum {
			continue
		}
		if err := m.deps.Builder.SetClassRequests(ctx, sum); err != nil {
			if ctx.Err() == nil {
				m.deps.Logger.Warn("failed to set the limits of the cgroups of all Burstable and Guaranteed Pods; retrying",
					"requests", sum, "retry", maxRetryDelay, "error", err)
				m.retryClasses(ctx)
			}
			continue
		}
		applied = &sum
	}
}

// retryClasses waits for maxRetryDelay and then makes syncClasses try again. A change of the sum ends the wait.
func (m *Manager) retryClasses(ctx context.Context) {
	timer := m.deps.Clock.NewTimer(maxRetryDelay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	case <-m.classes.changed.C():
	}
	m.classes.changed.Notify()
}

// ClassRequests returns what the active Pods of the classes request together; memory only with Config.CountMemory.
func (m *Manager) ClassRequests() cm.Requests {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.classes.sum
}
