package eviction

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/qos"
	"github.com/berth-dev/berth/kubelet/status"
)

// hardGrace is the grace period, in seconds, of a Pod that cannot be waited for.
const hardGrace = 1

// reclaim frees the resource of a threshold that is due: first what no container needs, then one Pod. It reports whether it has
// freed something.
func (m *Manager) reclaim(ctx context.Context, t Threshold, o Observation) bool {
	select {
	case <-m.deps.Ready:
	default:
		return false // Pods that are not known yet may run
	}
	name := t.Signal.resource()
	if !m.inReclaim[t.Signal] {
		m.inReclaim[t.Signal] = true
		m.deps.Logger.Warn("node is short of a resource", "resource", name, "signal", string(t.Signal), "threshold", t.Value.String(),
			"available", o.Available, "capacity", o.Capacity)
	}
	m.deps.Recorder.Eventf(m.deps.Node, corev1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim %s", name)
	if m.removeUnused(ctx, t) {
		return true
	}
	usage, err := m.measure(ctx, t.Signal)
	if err != nil {
		m.deps.Logger.Warn("failed to measure the Pods; evicting by priority", "error", err)
	}
	var critical []string
	for _, pod := range rank(t.Signal, m.layout, m.deps.Pods.ActivePods(), usage) {
		if qos.IsCritical(pod) {
			critical = append(critical, pod.Namespace+"/"+pod.Name)
			continue
		}
		if m.evict(ctx, pod, t, o, usage) {
			delete(m.helpless, t.Signal)
			return true
		}
	}
	if !m.helpless[t.Signal] {
		m.helpless[t.Signal] = true
		m.deps.Logger.Warn("found no Pod to evict", "resource", name, "criticalPods", critical)
	}
	return false
}

// removeUnused removes what occupies the disk of the threshold and no container needs. It reports whether the threshold and its
// minimum reclaim are available now.
func (m *Manager) removeUnused(ctx context.Context, t Threshold) bool {
	containers, images := m.layout.reclaims(t.Signal)
	if !containers && !images {
		return false
	}
	limited, cancel := context.WithTimeout(ctx, reclaimTimeout)
	defer cancel()
	if containers {
		if err := m.deps.Pods.DiscardEnded(limited); err != nil {
			m.deps.Logger.Warn("failed to remove the containers of ended Pods", "error", err)
		}
	}
	if images && m.deps.RemoveImages != nil {
		if err := m.deps.RemoveImages(limited); err != nil {
			m.deps.Logger.Warn("failed to remove unused images", "error", err)
		}
	}
	observed := m.observe(ctx)
	o, known := observed[t.Signal]
	return known && t.distance(o, true) >= 0
}

// measure returns what the Pods use.
func (m *Manager) measure(ctx context.Context, signal Signal) (Usage, error) {
	ctx, cancel := context.WithTimeout(ctx, observeTimeout)
	defer cancel()
	return m.deps.Usage(ctx, signal.isDisk())
}

// evict ends a Pod and waits until it uses nothing any more. It returns false if the Pod has ended meanwhile.
func (m *Manager) evict(ctx context.Context, pod *corev1.Pod, t Threshold, o Observation, usage Usage) bool {
	text, annotations := message(t, o, pod, usage[string(pod.UID)])
	grace := m.grace(&t, pod)
	gone := make(chan struct{})
	if !m.deps.Pods.EvictThen(pod.UID, status.Failure{
		Reason: Reason, Message: text, Detail: string(t.Signal), Disruption: true, Discard: t.Signal.isDisk(),
	}, &grace, func() { close(gone) }) {
		return false
	}
	m.deps.Recorder.AnnotatedEventf(pod, annotations, corev1.EventTypeWarning, Reason, "%s", text)
	m.deps.ObserveStatsAge(string(t.Signal), m.deps.Clock.Since(o.At))
	m.deps.Logger.Warn("evicting Pod", "pod", pod.Namespace+"/"+pod.Name, "uid", pod.UID, "signal", string(t.Signal), "message", text)
	timer := m.deps.Clock.NewTimer(cleanupTimeout + time.Duration(grace)*time.Second)
	defer timer.Stop()
	select {
	case <-gone:
	case <-ctx.Done():
	case <-timer.C():
		m.deps.Recorder.Eventf(pod, corev1.EventTypeWarning, "ExceededGracePeriod",
			"The Pod has not ended within its grace period of %d s and %s more.", grace, cleanupTimeout)
		m.deps.Logger.Warn("evicted Pod has not ended in time", "pod", pod.Namespace+"/"+pod.Name, "uid", pod.UID)
	}
	return true
}

// grace returns how many seconds a Pod has to end: hardly any at a hard threshold, else its own, as far as the configuration allows.
func (m *Manager) grace(t *Threshold, pod *corev1.Pod) int64 {
	own, most := pod.Spec.TerminationGracePeriodSeconds, m.config.MaxPodGracePeriod
	switch {
	case t.hard():
		return hardGrace
	case most < 0:
		return ptr.Deref(own, corev1.DefaultTerminationGracePeriodSeconds)
	}
	return min(most, ptr.Deref(own, most))
}
