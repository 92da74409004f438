package podworker

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/kubelet/qos"
)

// burstableCPU is what the active Burstable Pods request together.
type burstableCPU struct {
	milliCPU int64         // in thousandths of a CPU
	changed  wakeup.Signal // wakes syncBurstable
}

// burstableRequest returns the CPU that a Pod requests in the cgroup of all Burstable Pods, in thousandths of a CPU.
func burstableRequest(pod *corev1.Pod) int64 {
	if pod == nil || qos.Class(pod) != corev1.PodQOSBurstable {
		return 0
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	return requests.Cpu().MilliValue()
}

// countBurstable replaces the CPU that is counted for a worker by what the Pod requests, nil for a Pod that is not active.
// The caller holds mu.
func (m *Manager) countBurstable(w *worker, pod *corev1.Pod) {
	next := burstableRequest(pod)
	if next == w.burstableCPU {
		return
	}
	m.burstable.milliCPU += next - w.burstableCPU
	w.burstableCPU = next
	m.burstable.changed.Notify()
}

// syncBurstable keeps the CPU weight of the Burstable cgroup at the sum of the requests of the active Burstable Pods,
// until ctx ends. It waits until all sources have delivered their Pods, since a part of the sum would take CPU from the
// Pods that run.
func (m *Manager) syncBurstable(ctx context.Context) {
	applied := int64(-1)
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.burstable.changed.C():
		}
		m.mu.Lock()
		ready, milliCPU := m.sourcesReady, m.burstable.milliCPU
		m.mu.Unlock()
		if !ready || milliCPU == applied {
			continue
		}
		if err := m.deps.Builder.SetBurstableCPU(ctx, milliCPU); err != nil {
			if ctx.Err() == nil {
				m.deps.Logger.Warn("failed to set the CPU weight of the Burstable cgroup; retrying",
					"milliCPU", milliCPU, "retry", maxRetryDelay, "error", err)
				m.retryBurstable(ctx)
			}
			continue
		}
		applied = milliCPU
	}
}

// retryBurstable waits for maxRetryDelay and then makes syncBurstable try again. A change of the sum ends the wait.
func (m *Manager) retryBurstable(ctx context.Context) {
	timer := m.deps.Clock.NewTimer(maxRetryDelay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	case <-m.burstable.changed.C():
	}
	m.burstable.changed.Notify()
}
