package mirror

import (
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
)

// Set writes a Pod's status to the API server: a static Pod's to its mirror Pod, as soon as that exists. It reports
// whether the status differs from the one before.
func (m *Manager) Set(pod *corev1.Pod, status corev1.PodStatus) bool {
	if !m.isLocalOnly(pod) {
		changed := m.deps.Writer.Set(pod, status)
		if changed {
			m.deps.OnStatus(pod, status)
		}
		return changed
	}
	if !m.keep(pod.UID, status) {
		return false
	}
	m.deps.OnStatus(pod, status)
	m.mu.Lock()
	name, static := m.names[pod.UID]
	m.mu.Unlock()
	if static {
		m.queue.Add(name)
	}
	return true
}

// keep stores a status, and reports whether it differs from the one before.
func (m *Manager) keep(uid types.UID, status corev1.PodStatus) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, known := m.statuses[uid]
	changed := !known || !apiequality.Semantic.DeepEqual(old, status)
	if changed {
		m.statuses[uid] = *status.DeepCopy()
	}
	return changed
}

// Get returns the last status of Set.
func (m *Manager) Get(uid types.UID) (corev1.PodStatus, bool) {
	m.mu.Lock()
	status, known := m.statuses[uid]
	m.mu.Unlock()
	if known {
		return *status.DeepCopy(), true
	}
	if m.deps.Writer == nil {
		return corev1.PodStatus{}, false
	}
	return m.deps.Writer.Get(uid)
}

// Previous returns the status of a Pod in the API, as an earlier process has written it: that of a static Pod from its mirror
// Pod. It reports false while the mirror Pod may not have been delivered yet.
func (m *Manager) Previous(pod *corev1.Pod) (corev1.PodStatus, bool) {
	if !podutil.IsStatic(pod) {
		return pod.Status, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if mirror := m.mirrors[nameOf(pod)]; mirror != nil {
		return *mirror.Status.DeepCopy(), true
	}
	return corev1.PodStatus{}, m.sourcesReady || m.deps.Client == nil
}

// Observe records a Pod as the API server has it.
func (m *Manager) Observe(pod *corev1.Pod) {
	if !m.isLocalOnly(pod) {
		m.deps.Writer.Observe(pod)
	}
}

// Finish requests the deletion of a Pod's object. Static Pods have none.
func (m *Manager) Finish(pod *corev1.Pod) {
	if !m.isLocalOnly(pod) {
		m.deps.Writer.Finish(pod)
	}
}

// Forget drops the state of a Pod of which nothing is left on the node, and deletes its mirror Pod.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	delete(m.statuses, uid)
	name, static := m.names[uid]
	if static {
		delete(m.names, uid)
		if current := m.static[name]; current != nil && current.UID == uid {
			delete(m.static, name)
		}
	}
	m.mu.Unlock()
	switch {
	case static:
		m.queue.Add(name)
	case m.deps.Writer != nil:
		m.deps.Writer.Forget(uid)
	}
}

// isLocalOnly reports whether a Pod's status is kept here.
func (m *Manager) isLocalOnly(pod *corev1.Pod) bool {
	return m.deps.Writer == nil || podutil.IsStatic(pod)
}
