package podcertificate

import (
	"fmt"
	"math/rand/v2"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// States of a certificate in metrics.
const (
	stateNotIssued = "not_yet_issued"
	stateDenied    = "denied"
	stateFailed    = "failed"
	stateFresh     = "fresh"
	stateOverdue   = "overdue_for_refresh"
	stateExpired   = "expired"
)

// observingStore passes the changes of requests on to the Manager.
type observingStore struct {
	cache.Store
	m *Manager
}

var _ cache.ReflectorStore = (*observingStore)(nil)

// Replace implements cache.ReflectorStore.
func (s *observingStore) Replace(list []any, version string) error {
	if err := s.Store.Replace(list, version); err != nil {
		return err
	}
	for _, object := range list {
		s.m.observe(object.(*request))
	}
	s.m.missing()
	return nil
}

// Add implements cache.ReflectorStore.
func (s *observingStore) Add(object any) error {
	defer s.m.observe(object.(*request))
	return s.Store.Add(object)
}

// Update implements cache.ReflectorStore.
func (s *observingStore) Update(object any) error {
	defer s.m.observe(object.(*request))
	return s.Store.Update(object)
}

// Delete implements cache.ReflectorStore.
func (s *observingStore) Delete(object any) error {
	if err := s.Store.Delete(object); err != nil {
		return err
	}
	if deleted, ok := object.(*request); ok {
		s.m.deleted(deleted.Namespace + "/" + deleted.Name)
	}
	return nil
}

// observe takes the result of a request.
func (m *Manager) observe(found *request) {
	if uid := m.take(found); uid != "" {
		m.subscribers.Send(uid)
	}
}

// take records the result of a request, and returns the Pod that it is for; none while there is no result.
func (m *Manager) take(found *request) (uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := found.Namespace + "/" + found.Name
	e := m.requests[name]
	if e == nil {
		return ""
	}
	e.pending.seen = true
	for i := range found.Status.Conditions {
		condition := &found.Status.Conditions[i]
		switch condition.Type {
		case certificatesv1beta1.PodCertificateRequestConditionTypeIssued:
			uid = m.issued(e, found)
		case certificatesv1beta1.PodCertificateRequestConditionTypeDenied:
			uid = m.refused(e, found, condition, stateDenied, "was denied")
		case certificatesv1beta1.PodCertificateRequestConditionTypeFailed:
			uid = m.refused(e, found, condition, stateFailed, "failed")
		default:
			continue
		}
		delete(m.requests, name)
		e.pending = pending{}
		e.finish()
		break
	}
	return uid
}

// issued takes over a new certificate. The caller holds mu.
func (m *Manager) issued(e *entry, found *request) types.UID {
	beginRefreshAt, notAfter := timeOf(found.Status.BeginRefreshAt), timeOf(found.Status.NotAfter)
	jitter := rand.N(max(min(maxJitter, notAfter.Sub(beginRefreshAt)/4), 1)) // not later than that
	refreshAt := beginRefreshAt.Add(jitter)
	if soonest := m.deps.Clock.Now().Add(minRefresh); refreshAt.Before(soonest) {
		refreshAt = soonest
	}
	e.certificate = certificate{
		privateKey: e.pending.privateKey, chain: cleanChain(found.Status.CertificateChain), refreshAt: refreshAt,
		beginRefreshAt: beginRefreshAt, notAfter: notAfter,
	}
	e.pending, e.backoff = pending{}, initialBackoff
	m.scheduleNext(e)
	return e.key.pod
}

// refused records that the signer has denied or failed a request, which is final for the Pod. The caller holds mu.
func (m *Manager) refused(e *entry, found *request, why *metav1.Condition, state, text string) types.UID {
	name := found.Namespace + "/" + found.Name
	e.final = fmt.Errorf("PodCertificateRequest %s %s by its signer: %s: %s", name, text, why.Reason, why.Message)
	e.finalState = state
	m.due.Remove(e)
	m.deps.Recorder.Eventf(e.pod, corev1.EventTypeWarning, why.Type, "PodCertificateRequest %s %s, reason=%q, message=%q",
		name, text, why.Reason, why.Message)
	return e.key.pod
}

// deleted replaces a pending request that was deleted.
func (m *Manager) deleted(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e := m.requests[name]; e != nil {
		m.dropPending(e)
		m.schedule(e, m.deps.Clock.Now().Add(e.backoff))
		e.backoff = min(2*e.backoff, maxBackoff)
	}
}

// missing replaces pending requests that were seen and that a later list does not have.
func (m *Manager) missing() {
	m.mu.Lock()
	var seen []string
	for name, e := range m.requests {
		if e.pending.seen {
			seen = append(seen, name)
		}
	}
	m.mu.Unlock()
	for _, name := range seen {
		if _, exists, err := m.store.GetByKey(name); err == nil && !exists {
			m.deleted(name)
		}
	}
}

// state returns the entry's state in metrics. The caller holds mu.
func (e *entry) state(now time.Time) string {
	switch {
	case e.final != nil:
		return e.finalState
	case e.chain == nil:
		return stateNotIssued
	case now.After(e.notAfter):
		return stateExpired
	case now.After(e.beginRefreshAt.Add(overdueAfter)):
		return stateOverdue
	}
	return stateFresh
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}
