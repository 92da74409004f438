package podcertificate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/kubelet/authzretry"
)

// entry is one certificate of a Pod. The Manager's mu guards all but key, pod and source.
type entry struct {
	key    key
	pod    *corev1.Pod
	source *corev1.PodCertificateProjection

	// requesting says that a request is being created.
	requesting bool
	pending    pending
	lastError  error // of the last attempt to create a request
	backoff    time.Duration
	// final is why there will be no further certificate; nil while there may be one.
	final      error
	finalState string
	done       chan struct{} // closed when there is a certificate or final is set

	certificate
}

// pending is a request without a result. Its name, with the namespace, is empty if there is none.
type pending struct {
	name       string
	privateKey []byte
	abandonAt  time.Time
	seen       bool // an event has shown it
}

// certificate is an issued certificate; without a chain there is none.
type certificate struct {
	privateKey, chain []byte
	// refreshAt is when the next one is requested, beginRefreshAt when the signer wants that, notAfter when it expires.
	refreshAt, beginRefreshAt, notAfter time.Time
	overdueReported, expiryReported     bool
}

func newEntry(k key, pod *corev1.Pod, source *corev1.PodCertificateProjection) *entry {
	return &entry{key: k, pod: pod, source: source, backoff: initialBackoff, done: make(chan struct{})}
}

// finish ends the wait of Bundle.
func (e *entry) finish() {
	select {
	case <-e.done:
	default:
		close(e.done)
	}
}

// advance does what is due for an entry: it creates a request, gives one up, or reports that a certificate is overdue.
func (m *Manager) advance(ctx context.Context, e *entry) {
	if !m.beginRequest(e) {
		return
	}
	privateKey, created, err := m.create(ctx, e)
	name := m.endRequest(ctx, e, privateKey, created, err)
	if stored, ok, err := m.store.GetByKey(name); err == nil && ok { // the watch was faster than the response
		m.observe(stored.(*request))
	}
}

// beginRequest does what is due for an entry but creating a request, and reports whether that is due, too.
func (m *Manager) beginRequest(e *entry) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.final != nil || e.requesting || m.entries[e.key] != e {
		return false
	}
	now := m.deps.Clock.Now()
	m.reportOverdue(e, now)
	if e.pending.name != "" && !now.Before(e.pending.abandonAt) {
		m.dropPending(e)
	}
	e.requesting = e.pending.name == "" && (e.chain == nil || !now.Before(e.refreshAt))
	if !e.requesting {
		m.scheduleNext(e)
	}
	return e.requesting
}

// endRequest records the request that was created, or why none was, and returns the name of the pending one, if there is one.
func (m *Manager) endRequest(ctx context.Context, e *entry, privateKey []byte, created *request, err error) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.requesting = false
	switch {
	case ctx.Err() != nil:
	case err != nil:
		e.lastError = err
		m.deps.Logger.Warn("failed to request a Pod's certificate; retrying", "pod", e.pod.Namespace+"/"+e.pod.Name,
			"uid", e.pod.UID, "signer", e.source.SignerName, "retry", e.backoff, "error", err)
		m.schedule(e, m.deps.Clock.Now().Add(e.backoff))
		e.backoff = min(2*e.backoff, maxBackoff)
	case m.entries[e.key] == e:
		e.lastError = nil
		e.pending = pending{
			name: created.Namespace + "/" + created.Name, privateKey: privateKey,
			abandonAt: m.deps.Clock.Now().Add(abandonAfter + rand.N(maxJitter)),
		}
		m.requests[e.pending.name] = e
		m.scheduleNext(e)
	}
	return e.pending.name
}

// reportOverdue records events for a certificate that was not replaced in time. The caller holds mu.
func (m *Manager) reportOverdue(e *entry, now time.Time) {
	if e.chain == nil {
		return
	}
	if !e.overdueReported && now.After(e.beginRefreshAt.Add(overdueAfter)) {
		e.overdueReported = true
		m.deps.Recorder.Event(e.pod, corev1.EventTypeWarning, "CertificateOverdueForRefresh", "PodCertificate refresh overdue")
	}
	if !e.expiryReported && now.After(e.notAfter) {
		e.expiryReported = true
		m.deps.Recorder.Event(e.pod, corev1.EventTypeWarning, "CertificateExpired", "PodCertificate expired")
	}
}

// scheduleNext schedules the next step of an entry. The caller holds mu.
func (m *Manager) scheduleNext(e *entry) {
	var next time.Time
	consider := func(at time.Time, relevant bool) {
		if relevant && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	consider(e.pending.abandonAt, e.pending.name != "")
	consider(e.refreshAt, e.chain != nil && e.pending.name == "")
	consider(e.beginRefreshAt.Add(overdueAfter+time.Second), e.chain != nil && !e.overdueReported)
	consider(e.notAfter.Add(time.Second), e.chain != nil && !e.expiryReported)
	if !next.IsZero() {
		m.schedule(e, next)
	}
}

// dropPending forgets a request that was deleted. The caller holds mu.
func (m *Manager) dropPending(e *entry) {
	m.deps.Logger.Info("PodCertificateRequest appears to have been deleted; creating another one", "name", e.pending.name)
	delete(m.requests, e.pending.name)
	e.pending = pending{}
}

// create makes a key and a request for a certificate.
func (m *Manager) create(ctx context.Context, e *entry) (privateKey []byte, created *request, err error) {
	node := m.deps.Node()
	if node == nil {
		return nil, nil, fmt.Errorf("the Node %q is not registered yet", m.nodeName)
	}
	pod, source := e.pod, e.source
	account, err := authzretry.Do(ctx, m.deps.Clock, func(ctx context.Context) (*corev1.ServiceAccount, error) {
		return m.deps.Client.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, pod.Spec.ServiceAccountName, metav1.GetOptions{})
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read service account %s/%s: %w", pod.Namespace, pod.Spec.ServiceAccountName, err)
	}
	privateKey, proof, err := newKeyAndProof(source.KeyType)
	if err != nil {
		return nil, nil, err
	}
	wanted := &request{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certificatesv1beta1.PodCertificateRequestSpec{
			SignerName: source.SignerName, PodName: pod.Name, PodUID: pod.UID,
			ServiceAccountName: pod.Spec.ServiceAccountName, ServiceAccountUID: account.UID,
			NodeName: types.NodeName(node.Name), NodeUID: node.UID, MaxExpirationSeconds: source.MaxExpirationSeconds,
			StubPKCS10Request: proof, UnverifiedUserAnnotations: source.UserAnnotations,
		},
	}
	created, err = authzretry.Do(ctx, m.deps.Clock, func(ctx context.Context) (*request, error) {
		return m.deps.Client.CertificatesV1beta1().PodCertificateRequests(pod.Namespace).Create(ctx, wanted, metav1.CreateOptions{})
	})
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("%w: an API server serves PodCertificateRequests with --feature-gates=PodCertificateRequest=true and "+
			"--runtime-config=certificates.k8s.io/v1beta1/podcertificaterequests=true", err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("create PodCertificateRequest: %w", err)
	}
	return privateKey, created, nil
}
