package podcertificate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/deadlines"
	"github.com/berth-dev/berth/internal/listwatch"
	"github.com/berth-dev/berth/internal/subscribers"
	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// issueWait is how long Bundle waits for the signer. A signer mostly needs less.
	issueWait = 5 * time.Second
	// abandonAfter is the age of a request without a result, of which no event has come, that counts as deleted.
	abandonAfter = 10 * time.Minute
	// overdueAfter is how long after its time a certificate that was not replaced is reported.
	overdueAfter = 10 * time.Minute
	// minRefresh is how long a certificate is used at least. Where the node's clock is fast, a new one seems to be due for replacement.
	minRefresh = time.Minute
	// maxJitter spreads the replacements of certificates that were issued at the same time.
	maxJitter = 5 * time.Minute
	// initialBackoff and maxBackoff bound the wait after a failed request.
	initialBackoff = time.Second
	maxBackoff     = time.Minute
)

// request is the type of the objects.
type request = certificatesv1beta1.PodCertificateRequest

// Deps are what a Manager works with. Client and Node are required.
type Deps struct {
	Client kubernetes.Interface
	// Node returns the Node object as last seen, nil before it is registered.
	Node     func() *corev1.Node
	Recorder record.EventRecorder
	Clock    clock.Clock
	Logger   *slog.Logger
}

// Manager obtains and replaces the certificates. It is safe for concurrent use.
type Manager struct {
	deps        Deps
	nodeName    string
	store       cache.Store   // the requests of this node's Pods
	needed      wakeup.Signal // a volume needs a certificate
	wake        wakeup.Signal // the earliest deadline may have changed
	subscribers subscribers.Set[types.UID]

	mu       sync.Mutex // guards all below, and the entries
	entries  map[key]*entry
	requests map[string]*entry // those with a pending request, by its namespace and name
	due      *deadlines.Queue[*entry]
}

// key identifies a certificate: a source of a projected volume of a Pod.
type key struct {
	pod    types.UID
	volume string
	index  int
}

// New returns a Manager that requests nothing yet.
func New(deps Deps, nodeName string) (*Manager, error) {
	switch {
	case deps.Client == nil:
		return nil, errors.New("podcertificate: Deps.Client is required")
	case deps.Node == nil:
		return nil, errors.New("podcertificate: Deps.Node is required")
	case nodeName == "":
		return nil, errors.New("podcertificate: the node's name is required")
	}
	if deps.Recorder == nil {
		deps.Recorder = &record.FakeRecorder{}
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{
		deps: deps, nodeName: nodeName, store: cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc),
		needed: wakeup.NewSignal(), wake: wakeup.NewSignal(), entries: map[key]*entry{}, requests: map[string]*entry{},
		due: deadlines.New[*entry](),
	}, nil
}

// Start watches the requests of this node from the first call of Bundle, and obtains and replaces certificates, until ctx
// ends.
func (m *Manager) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-m.needed.C():
	}
	var running sync.WaitGroup
	defer running.Wait()
	source := listwatch.Select(m.deps.Client.CertificatesV1beta1().PodCertificateRequests(""), m.deps.Client,
		func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", m.nodeName).String()
		})
	running.Go(contain.Loop(ctx, "podcertificate.watch", "", func(ctx context.Context) {
		cache.NewReflectorWithOptions(source, &request{}, &observingStore{Store: m.store, m: m},
			cache.ReflectorOptions{Name: "pod certificate requests"}).RunWithContext(ctx)
	}))
	for m.waitDue(ctx) {
		for _, one := range m.takeDue() {
			running.Go(contain.Loop(ctx, "podcertificate.advance", "", func(ctx context.Context) { m.advance(ctx, one) }))
		}
	}
	return nil
}

// takeDue returns the entries whose next step is due.
func (m *Manager) takeDue() []*entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.due.PopAllDue(m.deps.Clock.Now())
}

// waitDue waits for the next deadline. It returns false when ctx has ended.
func (m *Manager) waitDue(ctx context.Context) bool {
	at, ok := m.nextDue()
	var timerC <-chan time.Time
	if ok {
		timer := m.deps.Clock.NewTimer(at.Sub(m.deps.Clock.Now()))
		defer timer.Stop()
		timerC = timer.C()
	}
	select {
	case <-ctx.Done():
		return false
	case <-m.wake.C():
	case <-timerC:
	}
	return true
}

func (m *Manager) nextDue() (time.Time, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.due.Next()
}

// Bundle returns the key and the certificate chain of a source of the Pod's volume, in PEM form. The first call requests the
// certificate and waits some seconds for it; if it is issued later, the subscribers are notified, as when it is replaced.
func (m *Manager) Bundle(ctx context.Context, pod *corev1.Pod, volume string, index int, source *corev1.PodCertificateProjection,
) (privateKey, chain []byte, err error) {
	one, known := m.entry(key{pod.UID, volume, index}, pod, source)
	m.needed.Notify()
	if !known {
		timer := m.deps.Clock.NewTimer(issueWait)
		defer timer.Stop()
		select {
		case <-one.done:
		case <-timer.C():
		case <-ctx.Done():
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if one.final != nil {
		return nil, nil, one.final
	}
	if one.chain == nil {
		return nil, nil, one.pendingError()
	}
	return one.privateKey, one.chain, nil
}

// entry returns the entry of a source, which it creates if there is none.
func (m *Manager) entry(k key, pod *corev1.Pod, source *corev1.PodCertificateProjection) (one *entry, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	one, known = m.entries[k]
	if !known {
		one = newEntry(k, pod, source)
		m.entries[k] = one
		m.schedule(one, m.deps.Clock.Now())
	}
	return one, known
}

// schedule sets when the entry is looked at next. The caller holds mu.
func (m *Manager) schedule(one *entry, at time.Time) {
	if m.entries[one.key] != one {
		return // forgotten
	}
	m.due.Set(one, at)
	m.wake.Notify()
}

// Subscribe calls changed with a Pod's UID each time that one of its certificates was issued, replaced or denied. changed must
// return at once. The returned function ends the subscription; a call may still be running.
func (m *Manager) Subscribe(changed func(uid types.UID)) (cancel func()) {
	return m.subscribers.Add(changed)
}

// Forget drops the keys and certificates of a Pod.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, one := range m.entries {
		if k.pod != uid {
			continue
		}
		delete(m.entries, k)
		delete(m.requests, one.pending.name)
		m.due.Remove(one)
	}
}

// pendingError describes what a certificate waits for. The caller holds mu.
func (e *entry) pendingError() error {
	switch {
	case e.lastError != nil:
		return fmt.Errorf("request a certificate of signer %q: %w", e.source.SignerName, e.lastError)
	case e.pending.name != "":
		return fmt.Errorf("PodCertificateRequest %s was not handled yet: is a signer %q running?", e.pending.name, e.source.SignerName)
	}
	return fmt.Errorf("a certificate of signer %q was not requested yet", e.source.SignerName)
}
