package volumemanager

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/volume"
)

// podTable is the state of all Pods. mu guards all of it.
type podTable struct {
	mu          sync.Mutex
	pods        map[types.UID]*podState
	podsByClaim map[types.NamespacedName]map[types.UID]struct{}
	stopped     bool     // UnmountAll was called
	toRefresh   podQueue // Pods whose volumes may have to be refreshed
	toExpand    podQueue // Pods whose volumes may have to be expanded
	toResync    podQueue // Pods whose volumes are resynced periodically
	toCheck     podQueue // Pods that have a new volume whose driver reports its health
}

func newPodTable() podTable {
	return podTable{
		pods: make(map[types.UID]*podState), podsByClaim: make(map[types.NamespacedName]map[types.UID]struct{}),
		toRefresh: newPodQueue(), toExpand: newPodQueue(), toResync: newPodQueue(), toCheck: newPodQueue(),
	}
}

// podQueue is a set of Pods that wait for a loop of the Manager. Its user guards it.
type podQueue struct {
	pods  map[types.UID]struct{}
	added wakeup.Signal // pods may not be empty
}

func newPodQueue() podQueue {
	return podQueue{pods: make(map[types.UID]struct{}), added: wakeup.NewSignal()}
}

func (q *podQueue) add(uid types.UID) {
	q.pods[uid] = struct{}{}
	q.added.Notify()
}

// take empties a queue.
func (m *podTable) take(q *podQueue) map[types.UID]struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	taken := q.pods
	q.pods = make(map[types.UID]struct{})
	return taken
}

// podState is the state of one Pod's volumes. gate is held for reading by operations on them, and for writing by the
// unmount, which waits until they have ended; the rest is guarded by the mutex of podTable.
type podState struct {
	uid     types.UID
	gate    sync.RWMutex
	closing chan struct{} // closed when Unmount begins

	pod                 *corev1.Pod // the latest version
	mounted             map[string]*mountedVolume
	resolved            map[string]*corev1.PersistentVolume // of claims, from before they are mounted
	resolvedOne         wakeup.Broadcast                    // resolved has one more
	terminating         map[string]*mountedVolume           // what was mounted when Unmount began, until all of it is unmounted
	lastEvents          map[string]lastEvent                // by volume, the failure of the last event
	retry               wakeup.Broadcast                    // something changed, so what failed may succeed now
	refreshRetryPending bool                                // a failed refresh will be retried
}

// mountedVolume is a volume that is set up.
type mountedVolume struct {
	Mounted
	plugin  volume.Plugin
	request volume.Request
	// expandedTo is the size in bytes up to which this node has expanded the volume, 0 if that is unknown. It is shared
	// by copies of this struct.
	expandedTo *atomic.Int64
	// usage is what the volume occupied of the node's disk when that was measured last. It is shared by copies, too.
	usage *lastUsage
	// health is what is wrong with the volume by its driver, nil if that was not read yet. It is shared by copies, too.
	health *atomic.Pointer[string]
}

// lastEvent is the last event about a volume.
type lastEvent struct {
	message string
	at      time.Time
}

func newPodState(uid types.UID) *podState {
	return &podState{
		uid: uid, closing: make(chan struct{}),
		mounted: make(map[string]*mountedVolume), resolved: make(map[string]*corev1.PersistentVolume), lastEvents: make(map[string]lastEvent),
	}
}

// podStateFor returns the Pod's state, creates it if necessary, and records the latest version of the Pod. It returns
// ErrTerminating if the Pod's volumes are being unmounted.
func (m *Manager) podStateFor(pod *corev1.Pod) (*podState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return nil, ErrTerminating
	}
	state, ok := m.pods[pod.UID]
	if !ok {
		state = newPodState(pod.UID)
		m.pods[pod.UID] = state
	}
	if state.isClosing() {
		return nil, ErrTerminating
	}
	state.pod = pod
	m.indexClaims(pod)
	return state, nil
}

// close ends Mount and refreshes of the Pod, and returns the Pod's state.
func (m *Manager) close(uid types.UID) *podState {
	m.mu.Lock()
	defer m.mu.Unlock()
	state, ok := m.pods[uid]
	if !ok {
		state = newPodState(uid)
		m.pods[uid] = state
	}
	if !state.isClosing() {
		close(state.closing)
	}
	return state
}

// forget removes the Pod's state.
func (m *Manager) forget(uid types.UID, state *podState) {
	m.drop(uid, state)
	m.deps.Objects.Release(uid)
	m.deps.Tokens.Forget(uid)
	for _, source := range m.deps.Sources {
		source.Forget(uid)
	}
}

// drop removes what the tables of the Manager have about a Pod.
func (m *Manager) drop(uid types.UID, state *podState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods[uid] == state {
		delete(m.pods, uid)
		if state.pod != nil {
			m.unindexClaims(state.pod)
		}
	}
	for _, queue := range []*podQueue{&m.toRefresh, &m.toExpand, &m.toResync, &m.toCheck} {
		delete(queue.pods, uid)
	}
	if state.pod != nil {
		for i := range state.pod.Spec.Volumes {
			m.operations.ForgetFailures(volumeKey(uid, state.pod.Spec.Volumes[i].Name))
		}
	}
}

// mountedOf returns the Pod and those of its mounted volumes that are wanted.
func (m *podTable) mountedOf(state *podState, wanted func(*mountedVolume) bool) (*corev1.Pod, map[string]*mountedVolume) {
	m.mu.Lock()
	defer m.mu.Unlock()
	volumes := make(map[string]*mountedVolume, len(state.mounted))
	for name, mounted := range state.mounted {
		if wanted(mounted) {
			volumes[name] = mounted
		}
	}
	return state.pod, volumes
}

func (s *podState) isClosing() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// untilClosing returns a context that ends with ctx, or when the Pod's volumes are to be unmounted.
func (s *podState) untilClosing(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer contain.Recover("volumemanager.untilClosing", "")
		defer close(ended)
		select {
		case <-s.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel()
		<-ended
	}
}
