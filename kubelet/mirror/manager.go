package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/lazyqueue"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/config"
)

// Annotation marks a mirror Pod; its value is the static Pod's hash.
const Annotation = corev1.MirrorPodAnnotationKey

const (
	initialRetryDelay = 100 * time.Millisecond
	maxRetryDelay     = 30 * time.Second
)

// Statuses writes statuses to the API server. *status.Writer implements it.
type Statuses interface {
	Set(pod *corev1.Pod, status corev1.PodStatus) bool
	Get(uid types.UID) (corev1.PodStatus, bool)
	Observe(pod *corev1.Pod)
	Finish(pod *corev1.Pod)
	Forget(uid types.UID)
}

// Deps are what a Manager needs from others.
type Deps struct {
	// Client creates and deletes mirror Pods, and Writer writes statuses. Both are nil without an API server: then
	// statuses are kept here, and there are no mirror Pods.
	Client kubernetes.Interface
	Writer Statuses
	// Node returns the Node object as last seen, nil while it is not registered.
	Node func() *corev1.Node
	// Registered is closed when the Node is registered. No mirror Pod can be created before.
	Registered <-chan struct{}
	// OnStatus is called for each new status of a Pod. It must not block. It may be nil.
	OnStatus func(pod *corev1.Pod, status corev1.PodStatus)
	// OnPrevious is called with the UID of each static Pod of which it becomes known what Previous returns. It must not block.
	// It may be nil.
	OnPrevious func(uid types.UID)
	// Logger and Clock may be nil.
	Logger *slog.Logger
	Clock  clock.WithTicker
}

// Manager keeps the mirror Pods of a node's static Pods. It passes statuses to the writer: those of static Pods as
// statuses of their mirror Pods, all others unchanged. It is safe for concurrent use.
type Manager struct {
	deps  Deps
	queue *lazyqueue.Queue[types.NamespacedName]

	mu       sync.Mutex // guards all below
	static   map[types.NamespacedName]*corev1.Pod
	names    map[types.UID]types.NamespacedName // of static
	mirrors  map[types.NamespacedName]*corev1.Pod
	statuses map[types.UID]corev1.PodStatus // of static Pods, and of all where there is no writer
	// sourcesReady says that all sources of static Pods have delivered their Pods: a mirror Pod without a static Pod is
	// deleted.
	sourcesReady bool
}

var _ Statuses = (*Manager)(nil)

// New returns a Manager.
func New(deps Deps) (*Manager, error) {
	if (deps.Client == nil) != (deps.Writer == nil) {
		return nil, errors.New("mirror: Deps.Client and Deps.Writer are required together")
	}
	if deps.Client != nil && deps.Node == nil {
		return nil, errors.New("mirror: Deps.Node is required with a client")
	}
	if deps.Client != nil && deps.Registered == nil {
		return nil, errors.New("mirror: Deps.Registered is required with a client")
	}
	if deps.OnStatus == nil {
		deps.OnStatus = func(*corev1.Pod, corev1.PodStatus) {}
	}
	if deps.OnPrevious == nil {
		deps.OnPrevious = func(types.UID) {}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &Manager{
		deps: deps,
		queue: lazyqueue.New[types.NamespacedName](lazyqueue.Config{
			Name: "mirror_pods", InitialDelay: initialRetryDelay, MaxDelay: maxRetryDelay, Clock: deps.Clock,
		}),
		static: map[types.NamespacedName]*corev1.Pod{}, names: map[types.UID]types.NamespacedName{},
		mirrors: map[types.NamespacedName]*corev1.Pod{}, statuses: map[types.UID]corev1.PodStatus{},
	}, nil
}

// Start reconciles the mirror Pods until ctx ends, as soon as the Node is registered.
func (m *Manager) Start(ctx context.Context) error {
	defer m.queue.ShutDown()
	if m.deps.Client == nil {
		m.queue.ShutDown() // there is nothing to reconcile
		<-ctx.Done()
		return nil
	}
	select {
	case <-m.deps.Registered:
	case <-ctx.Done():
		return nil
	}
	m.queue.Start()
	var worker sync.WaitGroup
	worker.Go(contain.Loop(ctx, "mirror.Start", "", func(ctx context.Context) {
		for {
			name, quit := m.queue.Get()
			if quit {
				return
			}
			contain.Guard("mirror.process", name.String(), func() { m.process(ctx, name) })()
		}
	}))
	<-ctx.Done()
	m.queue.ShutDown()
	worker.Wait()
	return nil
}

// HandleStatic handles a change of a static Pod. The mirror Pod of a removed one stays until Forget.
func (m *Manager) HandleStatic(change config.Change) {
	if change.Op == config.Delete || change.Op == config.Remove {
		return
	}
	name := nameOf(change.Pod)
	m.mu.Lock()
	m.static[name], m.names[change.Pod.UID] = change.Pod, name
	m.mu.Unlock()
	m.queue.Add(name)
}

// HandleMirror handles a change of a mirror Pod in the API.
func (m *Manager) HandleMirror(change config.Change) {
	name := nameOf(change.Pod)
	m.mu.Lock()
	old, static := m.mirrors[name], m.static[name]
	if change.Op == config.Remove {
		if old != nil && old.UID == change.Pod.UID {
			delete(m.mirrors, name)
		}
	} else {
		m.mirrors[name] = change.Pod
	}
	m.mu.Unlock()
	if m.deps.Writer != nil {
		if change.Op == config.Remove {
			m.deps.Writer.Forget(change.Pod.UID)
		} else {
			m.deps.Writer.Observe(change.Pod)
		}
	}
	if old == nil && static != nil && change.Op != config.Remove {
		m.deps.OnPrevious(static.UID)
	}
	m.queue.Add(name)
}

// SourcesReady says that all sources have delivered their Pods: mirror Pods without a static Pod are deleted.
func (m *Manager) SourcesReady() {
	m.mu.Lock()
	m.sourcesReady = true
	names := make([]types.NamespacedName, 0, len(m.mirrors))
	for name := range m.mirrors {
		names = append(names, name)
	}
	var decided []types.UID
	for name, pod := range m.static {
		if m.mirrors[name] == nil {
			decided = append(decided, pod.UID)
		}
	}
	m.mu.Unlock()
	for _, uid := range decided {
		m.deps.OnPrevious(uid)
	}
	for _, name := range names {
		m.queue.Add(name)
	}
}

// Mirrors returns the mirror Pods in the API, in no order. They must not be modified.
func (m *Manager) Mirrors() []*corev1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*corev1.Pod, 0, len(m.mirrors))
	for _, pod := range m.mirrors {
		out = append(out, pod)
	}
	return out
}

// StaticUID returns the UID of the static Pod that the mirror Pod with this UID shows, and any other UID unchanged.
func (m *Manager) StaticUID(uid types.UID) types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, pod := range m.mirrors {
		if static := m.static[name]; pod.UID == uid && static != nil {
			return static.UID
		}
	}
	return uid
}

// process reconciles the mirror Pod of one name.
func (m *Manager) process(ctx context.Context, name types.NamespacedName) {
	defer m.queue.Done(name)
	if ctx.Err() != nil {
		return
	}
	m.mu.Lock()
	static, mirror, known := m.static[name], m.mirrors[name], m.sourcesReady
	var status *corev1.PodStatus
	if static != nil {
		if s, ok := m.statuses[static.UID]; ok {
			status = &s
		}
	}
	m.mu.Unlock()
	err := m.reconcile(ctx, static, mirror, status, known)
	if err == nil {
		m.queue.Forget(name)
		return
	}
	if ctx.Err() == nil {
		m.deps.Logger.Warn("failed to reconcile the mirror Pod of a static Pod; retrying", "pod", name, "error", err)
		m.queue.AddRateLimited(name)
	}
}

// reconcile takes the next step for a mirror Pod. The resulting watch event leads to the next one.
func (m *Manager) reconcile(ctx context.Context, static, mirror *corev1.Pod, status *corev1.PodStatus, known bool) error {
	switch {
	case mirror == nil && static == nil:
		return nil
	case mirror == nil:
		return m.create(ctx, static)
	case static == nil && !known:
		return nil // its source may not have delivered it yet
	case static == nil, !matches(static, mirror):
		return m.remove(ctx, mirror)
	case status != nil:
		m.deps.Writer.Set(mirror, *status)
		name := nameOf(mirror)
		m.mu.Lock()
		current := m.mirrors[name]
		m.mu.Unlock()
		if current == nil || current.UID != mirror.UID {
			m.deps.Writer.Forget(mirror.UID) // it was removed before Set, which remembers it for ever
		}
	}
	return nil
}

// matches reports whether the mirror Pod shows the static Pod as it is.
func matches(static, mirror *corev1.Pod) bool {
	if mirror.DeletionTimestamp != nil || mirror.Annotations[Annotation] != hashOf(static) {
		return false
	}
	// Beside its metadata, only images can be edited in a Pod.
	if len(mirror.Spec.Containers) != len(static.Spec.Containers) {
		return false
	}
	for i := range static.Spec.Containers {
		if mirror.Spec.Containers[i].Image != static.Spec.Containers[i].Image {
			return false
		}
	}
	return true
}

func (m *Manager) create(ctx context.Context, static *corev1.Pod) error {
	node := m.deps.Node()
	if node == nil {
		return errors.New("create mirror Pod: the Node is not registered")
	}
	mirror := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: static.Namespace, Name: static.Name, Labels: static.Labels,
			Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: ptr.To(true),
			}},
		},
		Spec: *static.Spec.DeepCopy(),
	}
	for key, value := range static.Annotations {
		mirror.Annotations[key] = value
	}
	mirror.Annotations[Annotation] = hashOf(static)
	_, err := m.deps.Client.CoreV1().Pods(mirror.Namespace).Create(ctx, mirror, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return m.checkExisting(ctx, static)
	}
	if err != nil {
		return fmt.Errorf("create mirror of static pod %s/%s: %w", static.Namespace, static.Name, err)
	}
	return nil
}

// checkExisting returns nil if the existing Pod is our mirror Pod, which the watch has not shown yet, and an error if it
// is another Pod.
func (m *Manager) checkExisting(ctx context.Context, static *corev1.Pod) error {
	found, err := m.deps.Client.CoreV1().Pods(static.Namespace).Get(ctx, static.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("get mirror of static pod %s/%s: %w", static.Namespace, static.Name, err)
	case !podutil.IsMirror(found) || found.Spec.NodeName != static.Spec.NodeName:
		return fmt.Errorf("create mirror of static pod %s/%s: the name belongs to another pod", static.Namespace, static.Name)
	}
	return nil
}

// remove deletes a mirror Pod at once: there is nothing to stop.
func (m *Manager) remove(ctx context.Context, mirror *corev1.Pod) error {
	err := m.deps.Client.CoreV1().Pods(mirror.Namespace).Delete(ctx, mirror.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &mirror.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete mirror pod %s/%s: %w", mirror.Namespace, mirror.Name, err)
	}
	return nil
}

func hashOf(static *corev1.Pod) string {
	if hash := static.Annotations[config.HashAnnotation]; hash != "" {
		return hash
	}
	return string(static.UID)
}

func nameOf(pod *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}
