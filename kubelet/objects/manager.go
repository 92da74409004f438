package objects

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/subscribers"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/kubelet/authzretry"
)

// Kind is the kind of an object that Pods refer to.
type Kind string

// The kinds.
const (
	KindSecret    Kind = "Secret"
	KindConfigMap Kind = "ConfigMap"
)

// Ref identifies an object.
type Ref struct {
	Kind            Kind
	Namespace, Name string
}

// String returns the Ref as it appears in logs and errors.
func (r Ref) String() string { return fmt.Sprintf("%s %s/%s", r.Kind, r.Namespace, r.Name) }

// Deps are what a Manager works with. Client is required.
type Deps struct {
	Client kubernetes.Interface
	Clock  clock.Clock
	Logger *slog.Logger
}

// Manager watches the objects. It is safe for concurrent use. The objects that it returns are shared and must not be
// modified.
type Manager struct {
	client      kubernetes.Interface
	clock       clock.Clock
	logger      *slog.Logger
	watches     sync.WaitGroup // the goroutines of entries
	wake        wakeup.Signal  // set when idleEntries got an entry
	subscribers subscribers.Set[types.UID]

	mu          sync.Mutex // guards all below
	ctx         context.Context
	entries     map[Ref]*entry
	pods        map[types.UID]map[Ref]struct{}
	idleEntries []idleEntry // entries that no Pod needs any more, the longest idle first
}

// New returns a Manager that watches nothing yet.
func New(deps Deps) (*Manager, error) {
	if deps.Client == nil {
		return nil, errors.New("objects: Deps.Client is required")
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{
		client: deps.Client, clock: deps.Clock, logger: deps.Logger,
		entries: make(map[Ref]*entry), pods: make(map[types.UID]map[Ref]struct{}),
		wake: wakeup.NewSignal(),
	}, nil
}

// Start watches the objects until ctx ends, including those of Pods that were acquired before.
func (m *Manager) Start(ctx context.Context) error {
	m.startWatches(ctx)
	m.runIdleExpiry(ctx)
	m.mu.Lock()
	m.ctx = nil
	m.mu.Unlock()
	m.watches.Wait()
	return nil
}

// startWatches watches the objects of Pods that were acquired before Start, and lets Acquire watch those of others.
func (m *Manager) startWatches(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ctx = ctx
	for _, entry := range m.entries {
		m.startWatch(entry)
	}
}

// Acquire registers the Pod as a user of the objects that it refers to. A further call for the same Pod replaces its
// references. It does not wait for the objects.
func (m *Manager) Acquire(pod *corev1.Pod) {
	refs := References(pod)
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.pods[pod.UID]
	m.pods[pod.UID] = refs
	for ref := range refs {
		if _, ok := old[ref]; ok {
			continue
		}
		found, ok := m.entries[ref]
		if !ok {
			found = newEntry(ref)
			m.entries[ref] = found
			if m.ctx != nil {
				m.startWatch(found)
			}
		}
		if len(found.pods) == 0 && ok {
			found.requireReread()
		}
		found.pods[pod.UID] = struct{}{}
	}
	for ref := range old {
		if _, ok := refs[ref]; !ok {
			m.releaseRef(ref, pod.UID)
		}
	}
}

// Release removes the Pod as a user of its objects. An object without users is removed: a Secret at once, a ConfigMap
// after a minute.
func (m *Manager) Release(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ref := range m.pods[uid] {
		m.releaseRef(ref, uid)
	}
	delete(m.pods, uid)
}

// releaseRef removes the Pod as a user of one object. The caller holds mu.
func (m *Manager) releaseRef(ref Ref, uid types.UID) {
	entry, ok := m.entries[ref]
	if !ok {
		return
	}
	delete(entry.pods, uid)
	if len(entry.pods) > 0 || m.keepIdle(entry) {
		return
	}
	m.remove(entry)
}

// startWatch starts the goroutine of the entry. The caller holds mu, and ctx is set.
func (m *Manager) startWatch(entry *entry) {
	if entry.cancel != nil {
		return
	}
	ctx, cancel := context.WithCancel(m.ctx)
	entry.cancel = cancel
	source := source{client: m.client, ref: entry.ref}
	m.watches.Add(1)
	go func() {
		defer m.watches.Done()
		defer cancel()
		contain.Loop(ctx, "objects.syncEntry", entry.ref.Namespace+"/"+entry.ref.Name, func(ctx context.Context) { m.syncEntry(ctx, entry, source) })()
	}()
}

// Subscribe calls changed with a Pod's UID each time an object that the Pod needs has changed: it appeared, was
// deleted, or has other content. changed runs in the goroutine of the object's watch and must return at once. The
// returned function ends the subscription; a call may still be running.
func (m *Manager) Subscribe(changed func(uid types.UID)) (cancel func()) {
	return m.subscribers.Add(changed)
}

// notify calls the subscribers for each Pod of the entry.
func (m *Manager) notify(entry *entry) {
	m.mu.Lock()
	pods := slices.Collect(maps.Keys(entry.pods))
	m.mu.Unlock()
	m.subscribers.Send(pods...)
}

// Get returns the newest known state of the object. For an object that a Pod has acquired it waits, until ctx ends, for
// the API server's first response; any other object is read from the API server. If the object does not exist,
// apierrors.IsNotFound is true for the error.
func (m *Manager) Get(ctx context.Context, ref Ref) (any, error) {
	m.mu.Lock()
	entry, ok := m.entries[ref]
	watched := ok && entry.cancel != nil
	m.mu.Unlock()
	if !watched {
		object, err := authzretry.Do(ctx, m.clock, source{client: m.client, ref: ref}.get)
		if err != nil {
			return nil, err
		}
		return object, nil
	}
	object, err := entry.wait(ctx)
	if err != nil {
		return nil, err
	}
	return object, nil
}

// Secret is Get for a Secret.
func (m *Manager) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	object, err := m.Get(ctx, Ref{Kind: KindSecret, Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	return object.(*corev1.Secret), nil
}

// ConfigMap is Get for a ConfigMap.
func (m *Manager) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	object, err := m.Get(ctx, Ref{Kind: KindConfigMap, Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	return object.(*corev1.ConfigMap), nil
}

// Watched returns the number of watched objects.
func (m *Manager) Watched() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.entries)
}

// notFound returns the error for an object that does not exist.
func notFound(ref Ref) error {
	resource := "secrets"
	if ref.Kind == KindConfigMap {
		resource = "configmaps"
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: resource}, ref.Name)
}
