package podworker

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/qos"
	"github.com/berth-dev/berth/kubelet/status"
)

// resizeRequest is a request for other resources than a Pod's allocated ones, until it is granted or infeasible.
type resizeRequest struct {
	w                  *worker
	allocated, desired *corev1.Pod
	since              time.Time
	// recovered says that the status of an earlier process has the request. The other Pods of the node may not be known
	// yet: it is evaluated when all sources are ready.
	recovered bool
	// failure is the result of the last evaluation. A granted request counts as allocated.
	failure *status.Failure
	granted bool
	// unseen says that the worker has not seen the result yet. trigger is why it was evaluated.
	unseen  bool
	trigger string
}

// sortResizes sorts requests by the order in which they get resources: first those that raise no request, then by the
// Pod's priority, then Guaranteed Pods, and then by age.
func sortResizes(requests []*resizeRequest) {
	rank := func(first bool) int {
		if first {
			return 0
		}
		return 1
	}
	slices.SortFunc(requests, func(a, b *resizeRequest) int {
		return cmp.Or(
			cmp.Compare(rank(!a.raisesRequests()), rank(!b.raisesRequests())),
			cmp.Compare(priority(b.desired), priority(a.desired)),
			cmp.Compare(rank(isGuaranteed(a.desired)), rank(isGuaranteed(b.desired))),
			a.since.Compare(b.since),
			cmp.Compare(a.desired.UID, b.desired.UID),
		)
	})
}

// raisesRequests reports whether the Pod would request more CPU or memory than it has.
func (r *resizeRequest) raisesRequests() bool {
	before := resource.PodRequests(r.allocated, resource.PodResourcesOptions{})
	after := resource.PodRequests(r.desired, resource.PodResourcesOptions{})
	return after.Cpu().Cmp(*before.Cpu()) > 0 || after.Memory().Cmp(*before.Memory()) > 0
}

func priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

func isGuaranteed(pod *corev1.Pod) bool { return qos.Class(pod) == corev1.PodQOSGuaranteed }

// recoverResize adds the request of a new worker whose Pod's status says that it is deferred. The caller holds mu.
func (m *Manager) recoverResize(w *worker) {
	if !w.resize.deferred || sameResources(w.resize.desired, w.pod) {
		return
	}
	pending := podutil.FindCondition(&w.resize.desired.Status, corev1.PodResizePending)
	m.resizes[w] = &resizeRequest{
		w: w, allocated: w.pod, desired: w.resize.desired, since: pending.LastTransitionTime.Time, recovered: true,
		failure: &status.Failure{Reason: pending.Reason, Message: pending.Message},
	}
}

// admitResize reports why the node cannot give a running Pod the resources of another version of it. If it can, that
// version counts at once, so that no other Pod gets the same resources. Requests that come first in the order get theirs
// first. The trigger is what had the request evaluated before the worker did; empty for nothing.
func (m *Manager) admitResize(w *worker, desired *corev1.Pod) (failure *status.Failure, trigger string) {
	since := m.deps.Clock.Now()
	last := w.lastStatus()
	if c := podutil.FindCondition(&last, corev1.PodResizePending); c != nil && c.Status == corev1.ConditionTrue {
		since = c.LastTransitionTime.Time
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	request := m.resizes[w]
	if request == nil {
		request = &resizeRequest{w: w, since: since, desired: desired}
		m.resizes[w] = request
	}
	if !sameResources(request.desired, desired) {
		request.recovered, request.granted, request.unseen, request.trigger = false, false, false, ""
	}
	request.desired = desired
	if !request.unseen {
		m.evaluateResizes(w, triggerResize)
	}
	failure, trigger = request.failure, request.trigger
	request.unseen, request.trigger = false, ""
	if failure == nil {
		w.sharedPod.Store(desired)
		m.countRequests(w, desired)
	}
	if failure == nil || failure.Reason != corev1.PodReasonDeferred {
		delete(m.resizes, w)
	}
	return failure, trigger
}

// withdrawResize removes the worker's request.
func (m *Manager) withdrawResize(w *worker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	request := m.resizes[w]
	delete(m.resizes, w)
	if request != nil && request.granted {
		m.evaluateResizes(nil, triggerResize)
	}
}

// retryDeferred evaluates all deferred resizes, since resources may be free. The trigger says why.
func (m *Manager) retryDeferred(trigger string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.evaluateResizes(nil, trigger)
}

// evaluateResizes evaluates in order the requests that are not granted, and wakes the workers other than self whose result
// has changed. The caller holds mu.
func (m *Manager) evaluateResizes(self *worker, trigger string) {
	for _, request := range m.sortedResizes() {
		if request.granted || request.recovered && !m.sourcesReady {
			continue
		}
		w, before := request.w, request.failure
		request.failure = m.deps.Admitter.Resize(request.allocated, request.desired, m.activePodsExcept(w))
		request.granted = request.failure == nil
		if w != self && (request.granted || before == nil || *before != *request.failure) {
			request.unseen, request.trigger = true, cmp.Or(request.trigger, trigger)
			w.post(func() {}) // it syncs
		}
	}
}

// sortedResizes returns all requests in order. The caller holds mu.
func (m *Manager) sortedResizes() []*resizeRequest {
	if len(m.resizes) == 0 {
		return nil
	}
	for w, request := range m.resizes {
		request.allocated = w.sharedPod.Load()
	}
	requests := slices.Collect(maps.Values(m.resizes))
	sortResizes(requests)
	return requests
}
