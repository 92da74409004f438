package trustbundle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/internal/listwatch"
	"github.com/berth-dev/berth/internal/subscribers"
	"github.com/berth-dev/berth/internal/wakeup"
)

// maxSelectorLength bounds the label selector of a volume, in characters, as Kubernetes' kubelet does.
const maxSelectorLength = 100 << 10

// bundle is the type of the objects.
type bundle = certificatesv1beta1.ClusterTrustBundle

// Deps are what a Manager works with. Client is required.
type Deps struct {
	Client kubernetes.Interface
	Logger *slog.Logger
}

// Manager watches the bundles. It is safe for concurrent use.
type Manager struct {
	deps        Deps
	store       cache.Store
	needed      wakeup.Signal // a volume needs a bundle
	subscribers subscribers.Set[types.UID]

	mu       sync.Mutex // guards below
	synced   chan struct{}
	unserved error // why the bundles cannot be listed; nil if they can be
	pods     map[types.UID]struct{}
}

// New returns a Manager that watches nothing yet.
func New(deps Deps) (*Manager, error) {
	if deps.Client == nil {
		return nil, errors.New("trustbundle: Deps.Client is required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Manager{
		deps: deps, store: cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc), needed: wakeup.NewSignal(),
		synced: make(chan struct{}), pods: map[types.UID]struct{}{},
	}, nil
}

// Start watches the bundles from the first call of TrustAnchors until ctx ends.
func (m *Manager) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-m.needed.C():
	}
	source := listwatch.New(api{m.deps.Client.CertificatesV1beta1().ClusterTrustBundles(), m}, m.deps.Client)
	cache.NewReflectorWithOptions(source, &bundle{}, &notifyingStore{Store: m.store, m: m},
		cache.ReflectorOptions{Name: "cluster trust bundles"}).RunWithContext(ctx)
	return nil
}

// TrustAnchors returns the certificates that the source selects, each once, in PEM form and in an order that stays the same
// until the kubelet starts again. Bundles that are missing are an error unless the source is optional. The Pod's subscribers
// are notified of each later change until Forget.
func (m *Manager) TrustAnchors(ctx context.Context, pod *corev1.Pod, source *corev1.ClusterTrustBundleProjection) ([]byte, error) {
	m.mu.Lock()
	m.pods[pod.UID] = struct{}{}
	synced, unserved := m.synced, m.unserved
	m.mu.Unlock()
	m.needed.Notify()
	if unserved != nil {
		return nil, unserved
	}
	select {
	case <-synced:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the list of ClusterTrustBundles: %w", ctx.Err())
	}
	m.mu.Lock()
	unserved = m.unserved
	m.mu.Unlock()
	if unserved != nil {
		return nil, unserved
	}
	found, err := m.find(source)
	if err != nil {
		return nil, err
	}
	return join(found), nil
}

// find returns the bundles that the source selects.
func (m *Manager) find(source *corev1.ClusterTrustBundleProjection) ([]*bundle, error) {
	optional := source.Optional != nil && *source.Optional
	switch {
	case source.Name != nil:
		object, ok, err := m.store.GetByKey(*source.Name)
		if err != nil || !ok && !optional {
			return nil, errors.Join(err, fmt.Errorf(
				"ClusterTrustBundle %q not found: create it, or mark the source as optional in the pod", *source.Name))
		}
		if !ok {
			return nil, nil
		}
		return []*bundle{object.(*bundle)}, nil
	case source.SignerName == nil:
		return nil, errors.New("the source clusterTrustBundle needs a name or a signerName")
	}
	selector, err := metav1.LabelSelectorAsSelector(source.LabelSelector) // nil selects nothing
	if err != nil {
		return nil, fmt.Errorf("parse labelSelector of clusterTrustBundle: %w", err)
	}
	if length := len(selector.String()); length > maxSelectorLength {
		return nil, fmt.Errorf("labelSelector of clusterTrustBundle has %d characters, more than %d", length, maxSelectorLength)
	}
	var found []*bundle
	for _, object := range m.store.List() {
		one := object.(*bundle)
		if one.Spec.SignerName == *source.SignerName && selector.Matches(labels.Set(one.Labels)) {
			found = append(found, one)
		}
	}
	if len(found) == 0 && !optional {
		return nil, fmt.Errorf("no ClusterTrustBundle of signer %q has the labels %q: create one, or mark the source as optional "+
			"in the pod", *source.SignerName, selector)
	}
	return found, nil
}

// Subscribe calls changed with the UID of each Pod that has called TrustAnchors after a change of a bundle. changed must return
// at once. The returned function ends the subscription; a call may still be running.
func (m *Manager) Subscribe(changed func(uid types.UID)) (cancel func()) {
	return m.subscribers.Add(changed)
}

// Forget ends the notifications about a Pod.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pods, uid)
}

// notify notifies the subscribers of all Pods.
func (m *Manager) notify() {
	m.mu.Lock()
	pods := slices.Collect(maps.Keys(m.pods))
	m.mu.Unlock()
	m.subscribers.Send(pods...)
}

// listed records the result of a list. An API server that does not serve the objects ends the waits for it.
func (m *Manager) listed(err error) {
	if m.setServed(err) {
		m.notify()
	}
}

// setServed reports whether the API server serves the objects now and did not before.
func (m *Manager) setServed(err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.unserved
	switch {
	case err == nil:
		m.unserved = nil
	case apierrors.IsNotFound(err):
		m.unserved = fmt.Errorf("the API server does not serve ClusterTrustBundles: start it with "+
			"--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true and "+
			"--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true: %w", err)
		m.markSynced()
	}
	return before != nil && m.unserved == nil
}

// synchronized records that the store has the first list.
func (m *Manager) synchronized() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.markSynced()
}

// markSynced ends the waits for the first list. The caller holds mu.
func (m *Manager) markSynced() {
	select {
	case <-m.synced:
	default:
		close(m.synced)
	}
}
