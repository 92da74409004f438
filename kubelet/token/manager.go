package token

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/deadlines"
	"github.com/berth-dev/berth/internal/subscribers"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/kubelet/authzretry"
)

const (
	// defaultLifetime is the requested lifetime of a token if the volume does not set one.
	defaultLifetime = time.Hour
	// maxAge is the age at which a token is renewed even if it is valid for longer.
	maxAge = 24 * time.Hour
	// minAge is the age until which no token is renewed.
	minAge = time.Minute
	// maxJitter spreads the renewals of tokens that were created at the same time.
	maxJitter = 10 * time.Second
	// initialBackoff and maxBackoff bound the wait after a failed renewal.
	initialBackoff = time.Second
	maxBackoff     = time.Minute
)

// Deps are what a Manager works with. Client is required.
type Deps struct {
	Client kubernetes.Interface
	// Clock should go on while the machine sleeps, as that of package boottime does: tokens end meanwhile.
	Clock  clock.Clock
	Logger *slog.Logger
}

// Manager manages the tokens. It is safe for concurrent use.
type Manager struct {
	client      kubernetes.Interface
	clock       clock.Clock
	logger      *slog.Logger
	wake        wakeup.Signal // the earliest renewal may have changed
	subscribers subscribers.Set[types.UID]

	mu       sync.Mutex // guards all below
	tokens   map[key]*entry
	pods     map[types.UID]map[key]struct{}
	renewals *deadlines.Queue[*entry] // all tokens, the next one to renew first
}

// key identifies a token.
type key struct {
	pod            types.UID
	namespace      string
	podName        string
	serviceAccount string
	audience       string
	seconds        int64
}

// entry is one token.
type entry struct {
	key       key
	lock      chan struct{} // has a value while unlocked; held while the token is requested
	value     string        // empty until the first response
	expires   time.Time
	backoff   time.Duration
	forgotten bool
}

// New returns a Manager that holds no token yet.
func New(deps Deps) (*Manager, error) {
	if deps.Client == nil {
		return nil, errors.New("token: Deps.Client is required")
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{
		client: deps.Client, clock: deps.Clock, logger: deps.Logger, wake: wakeup.NewSignal(), renewals: deadlines.New[*entry](),
		tokens: make(map[key]*entry), pods: make(map[types.UID]map[key]struct{}),
	}, nil
}

// Start renews tokens until ctx ends.
func (m *Manager) Start(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-m.wake.C(): // the queue is read now, so the signal need not interrupt the timer below
		default:
		}
		due, wait := m.takeDue()
		for _, entry := range due {
			running.Go(contain.Loop(ctx, "token.renew", "", func(ctx context.Context) { m.renew(ctx, entry) }))
		}
		var timer clock.Timer
		var timerC <-chan time.Time
		if wait > 0 {
			timer = m.clock.NewTimer(wait)
			timerC = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-m.wake.C():
		case <-timerC:
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// takeDue returns the tokens that are to be renewed now, and after how long the next one is; 0 if there is none.
func (m *Manager) takeDue() (due []*entry, wait time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	due = m.renewals.PopAllDue(now)
	if at, ok := m.renewals.Next(); ok {
		wait = at.Sub(now)
	}
	return due, wait
}

// Token returns a token of the Pod's service account for the audience and lifetime of the projection, bound to the Pod.
// The first call for a token requests it from the API server; later ones return the same token until it is renewed. If
// renewing fails, the old token is returned while it is valid.
func (m *Manager) Token(
	ctx context.Context, pod *corev1.Pod, projection *corev1.ServiceAccountTokenProjection,
) (string, error) {
	entry := m.entry(pod, projection)
	select {
	case <-entry.lock:
		defer func() { entry.lock <- struct{}{} }()
	case <-ctx.Done():
		return "", fmt.Errorf("get token for Pod %s/%s: %w", pod.Namespace, pod.Name, ctx.Err())
	}
	m.mu.Lock()
	value, valid := entry.value, m.clock.Now().Before(entry.expires)
	m.mu.Unlock()
	if value != "" && valid {
		return value, nil
	}
	if err := m.refresh(ctx, entry); err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return entry.value, nil
}

// entry returns the entry of a token and creates it if necessary.
func (m *Manager) entry(pod *corev1.Pod, projection *corev1.ServiceAccountTokenProjection) *entry {
	k := key{
		pod: pod.UID, namespace: pod.Namespace, podName: pod.Name, serviceAccount: pod.Spec.ServiceAccountName,
		audience: projection.Audience, seconds: int64(defaultLifetime / time.Second),
	}
	if projection.ExpirationSeconds != nil {
		k.seconds = *projection.ExpirationSeconds
	}
	if k.serviceAccount == "" {
		k.serviceAccount = "default"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if found, ok := m.tokens[k]; ok {
		return found
	}
	created := &entry{key: k, lock: make(chan struct{}, 1), backoff: initialBackoff}
	created.lock <- struct{}{}
	m.tokens[k] = created
	if m.pods[k.pod] == nil {
		m.pods[k.pod] = make(map[key]struct{})
	}
	m.pods[k.pod][k] = struct{}{}
	return created
}

// Request returns a new token like Token's that is neither kept nor renewed, for callers that need it only briefly. It is of the Pod's account as
// the caller knows it: the API server refuses a token of another account of the same name.
func (m *Manager) Request(ctx context.Context, pod *corev1.Pod, account types.UID, audience string) (string, error) {
	response, err := m.createToken(ctx, key{
		pod: pod.UID, namespace: pod.Namespace, podName: pod.Name, serviceAccount: pod.Spec.ServiceAccountName,
		audience: audience, seconds: int64(defaultLifetime / time.Second),
	}, account)
	if err != nil {
		return "", err
	}
	return response.Status.Token, nil
}

// createToken requests a token from the API server. account may be empty: any account of the name will do.
func (m *Manager) createToken(ctx context.Context, k key, account types.UID) (*authenticationv1.TokenRequest, error) {
	request := &authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{UID: account}, Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &k.seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: k.podName, UID: k.pod},
	}}
	if k.audience != "" {
		request.Spec.Audiences = []string{k.audience}
	}
	response, err := authzretry.Do(ctx, m.clock, func(ctx context.Context) (*authenticationv1.TokenRequest, error) {
		return m.client.CoreV1().ServiceAccounts(k.namespace).CreateToken(ctx, k.serviceAccount, request,
			metav1.CreateOptions{})
	})
	if err != nil {
		return nil, fmt.Errorf("request token of service account %s/%s for Pod %q: %w", k.namespace, k.serviceAccount,
			k.podName, err)
	}
	if response.Status.Token == "" {
		return nil, fmt.Errorf("request token of service account %s/%s for Pod %q: the API server returned an empty token",
			k.namespace, k.serviceAccount, k.podName)
	}
	return response, nil
}

// refresh requests the entry's token and schedules its renewal. The caller holds the entry's lock.
func (m *Manager) refresh(ctx context.Context, entry *entry) error {
	requestedAt := m.clock.Now()
	response, err := m.createToken(ctx, entry.key, "")
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	entry.value = response.Status.Token
	entry.expires = requestedAt.Add(lifetime(response, requestedAt))
	entry.backoff = initialBackoff
	m.schedule(entry, renewalTime(requestedAt, entry.expires))
	return nil
}

// lifetime returns how long a token is valid. Its end, which the response has, too, is a time of the API server's clock, which may not agree
// with the node's.
func lifetime(response *authenticationv1.TokenRequest, requestedAt time.Time) time.Duration {
	if seconds := response.Spec.ExpirationSeconds; seconds != nil && *seconds > 0 {
		return time.Duration(*seconds) * time.Second
	}
	return response.Status.ExpirationTimestamp.Sub(requestedAt)
}

// renewalTime returns when to renew a token: at 80 % of its lifetime or at the age of one day, a random jitter earlier.
func renewalTime(requestedAt, expires time.Time) time.Time {
	age := max(min(expires.Sub(requestedAt)*8/10, maxAge), minAge)
	jitter := rand.N(min(maxJitter, age/10+1))
	return requestedAt.Add(age - jitter)
}

// schedule updates the entry's position in the renewals. The caller holds mu.
func (m *Manager) schedule(entry *entry, at time.Time) {
	if entry.forgotten {
		return
	}
	m.renewals.Set(entry, at)
	m.wake.Notify()
}

// renew requests a new token and notifies the subscribers.
func (m *Manager) renew(ctx context.Context, entry *entry) {
	select {
	case <-entry.lock:
		defer func() { entry.lock <- struct{}{} }()
	case <-ctx.Done():
		return
	}
	m.mu.Lock()
	old, forgotten := entry.value, entry.forgotten
	m.mu.Unlock()
	if forgotten {
		return
	}
	if m.renewed(entry, old, m.refresh(ctx, entry)) {
		m.subscribers.Send(entry.key.pod)
	}
}

// renewed reports whether there is a new token, and schedules another attempt after an error.
func (m *Manager) renewed(entry *entry, old string, err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		return entry.value != old && !entry.forgotten
	}
	m.logger.Warn("failed to renew service account token; keeping the old one", "namespace", entry.key.namespace,
		"pod", entry.key.podName, "uid", entry.key.pod, "expires", entry.expires, "error", err)
	m.schedule(entry, m.clock.Now().Add(entry.backoff))
	entry.backoff = min(2*entry.backoff, maxBackoff)
	return false
}

// Subscribe calls renewed with a Pod's UID each time a token of that Pod was renewed. renewed must return at once. The
// returned function ends the subscription; a call may still be running.
func (m *Manager) Subscribe(renewed func(uid types.UID)) (cancel func()) {
	return m.subscribers.Add(renewed)
}

// Forget drops the Pod's tokens.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.pods[uid] {
		entry := m.tokens[k]
		entry.forgotten = true
		m.renewals.Remove(entry)
		delete(m.tokens, k)
	}
	delete(m.pods, uid)
}

// Len returns the number of tokens.
func (m *Manager) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.tokens)
}
