package podworker

import (
	"context"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/timeline"
)

const owner = "kubelet"

// Manager has one worker for each Pod. It is safe for concurrent use; its methods do not block. It has many methods because it
// passes requests of many components on to the workers.
type Manager struct {
	config  Config
	deps    Deps
	backoff *kuberuntime.Backoff

	group sync.WaitGroup // the workers

	mu      sync.Mutex // guards all below
	running context.Context
	workers map[types.UID]*worker
	// pendingWorkers are the workers made before Start.
	pendingWorkers []*worker
	// sourcesReady says that all sources have delivered their Pods once. runtimePods are the Pods that the runtime has
	// and that were not checked for orphans yet.
	sourcesReady bool
	runtimePods  []types.UID
	// listed says that the runtime has listed its Pods once. ready is closed when sourcesReady is set too.
	listed    bool
	ready     chan struct{}
	markReady func()
	// resizes are the requests for resources that wait for their worker or for the node.
	resizes map[*worker]*resizeRequest
	classes classRequests
}

var _ config.Handler = (*Manager)(nil)

// New returns a Manager. Start runs its workers.
func New(deps Deps, config Config) (*Manager, error) {
	if err := deps.complete(); err != nil {
		return nil, err
	}
	config, ready := config.withDefaults(), make(chan struct{})
	return &Manager{
		config: config, deps: deps, backoff: kuberuntime.NewBackoff(config.MaxBackoff), workers: map[types.UID]*worker{},
		ready: ready, markReady: sync.OnceFunc(func() { close(ready) }), classes: classRequests{changed: wakeup.NewSignal()}, resizes: map[*worker]*resizeRequest{},
	}, nil
}

// Ready is closed when all sources have delivered their Pods and the runtime has listed its own: from then on a Pod
// without a worker is an orphan.
func (m *Manager) Ready() <-chan struct{} { return m.ready }

// Start runs the workers until ctx ends, and returns when they have all returned. Containers run on.
func (m *Manager) Start(ctx context.Context) error {
	m.startPending(ctx)
	m.group.Go(contain.Loop(ctx, "podworker.syncClasses", "", m.syncClasses))
	for ctx.Err() == nil {
		select {
		case <-m.deps.Signals.pending.C():
			m.handleSignals()
		case <-ctx.Done():
		}
	}
	m.mu.Lock()
	m.sourcesReady = false // no worker is created from here on
	m.mu.Unlock()
	m.group.Wait()
	return nil
}

// startPending starts the workers of Pods that were delivered before Start.
func (m *Manager) startPending(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = ctx
	for _, w := range m.pendingWorkers {
		m.startWorker(w)
	}
	m.pendingWorkers = nil
}

// HandlePod handles a change of a Pod from a source.
func (m *Manager) HandlePod(change config.Change) {
	for range maxPanics { // a source does not repeat a change
		if contain.Do("podworker.HandlePod", podutil.Name(change.Pod), func() error { m.handlePod(change); return nil }) == nil {
			return
		}
	}
}

func (m *Manager) handlePod(change config.Change) {
	pod := change.Pod
	m.deps.Statuses.Observe(pod)
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.workers[pod.UID]
	if w == nil {
		if change.Op == config.Remove {
			return
		}
		m.addPod(pod, nil)
		return
	}
	switch {
	case w.removedFromSource && change.Op == config.Remove:
		w.recreated = nil
	case w.removedFromSource && (change.Op == config.Add || w.recreated != nil):
		w.recreated = pod
	case change.Op == config.Remove:
		w.removedFromSource = true
		w.post(func() { w.removed = true })
	case change.Op == config.Reconcile:
		w.post(func() { w.updatePod(pod) })
	default:
		w.post(func() {
			w.updatePod(pod)
			m.deps.Volumes.PodUpdated(pod)
		})
	}
}

// addPod admits a new Pod and creates its worker. attempts are the restart counts of an earlier Pod with its UID, which go on.
// The caller holds mu.
func (m *Manager) addPod(pod *corev1.Pod, attempts map[string]uint32) {
	m.deps.Timeline.Mark(timeline.PodRef(pod), owner, timeline.StageSeen, "", nil)
	rejected, preemption := m.admit(pod)
	w := newWorker(m, pod)
	maps.Copy(w.attempts, attempts)
	if w.rejected = rejected; rejected == nil && !podutil.IsTerminal(&pod.Status) {
		m.deps.Allocations.Allocate(w.pod)
	}
	if podutil.IsTerminal(&pod.Status) && containersEnded(&pod.Status) {
		w.vacated.Store(true)
	} else if rejected == nil {
		m.countRequests(w, w.pod)
		m.recoverResize(w)
		m.preempt(w, preemption)
	}
	m.addWorker(w)
}

// admit reports why the node rejects a new Pod, nil if it admits it, and which Pods end for it. The caller holds mu.
func (m *Manager) admit(pod *corev1.Pod) (*status.Failure, Preemption) {
	switch {
	case podutil.IsTerminal(&pod.Status):
		return nil, Preemption{}
	case pod.Status.StartTime != nil:
		return m.readmit(pod), Preemption{}
	case pod.DeletionTimestamp != nil:
		return nil, Preemption{}
	}
	candidate := m.allocated(pod)
	preemption, others := m.choosePreempted(candidate, m.activePodsExcept(nil))
	var failure *status.Failure
	err := contain.Do("podworker.admit", podutil.Name(pod), func() error {
		failure = m.deps.Admitter.Admit(candidate, others)
		return nil
	})
	if err != nil {
		failure = &status.Failure{Reason: ReasonPanicked, Message: "The kubelet panicked while it admitted this Pod: " + err.Error()}
	}
	m.deps.Timeline.Mark(timeline.PodRef(pod), owner, timeline.StageAdmitted, "", failureError(failure))
	m.reportRejection(pod, failure)
	return failure, preemption
}

// readmit reports why the node cannot go on running a Pod that an earlier process has admitted; nil if it can, if that panics, and for one
// that ends anyway. The caller holds mu.
func (m *Manager) readmit(pod *corev1.Pod) *status.Failure {
	var failure *status.Failure
	err := contain.Do("podworker.admit", podutil.Name(pod), func() error {
		failure = m.deps.Admitter.Readmit(m.allocated(pod))
		return nil
	})
	if err != nil || pod.DeletionTimestamp != nil {
		return nil
	}
	m.reportRejection(pod, failure)
	return failure
}

// allocated returns the Pod with what an earlier process has allocated, if it has.
func (m *Manager) allocated(pod *corev1.Pod) *corev1.Pod {
	if granted := m.deps.Allocations.Allocated(pod); granted != nil {
		return granted
	}
	return pod
}

// reportRejection says why a Pod is rejected, if it is.
func (m *Manager) reportRejection(pod *corev1.Pod, failure *status.Failure) {
	if failure == nil {
		return
	}
	m.deps.Recorder.Event(pod, corev1.EventTypeWarning, failure.Reason, failure.Message)
	m.deps.Logger.Warn("Pod rejected", "pod", pod.Namespace+"/"+pod.Name, "uid", pod.UID,
		"reason", failure.Reason, "message", failure.Message)
}

// activePodsExcept returns the Pods that use resources of the node, without that of one worker. Pods that are gone from their source,
// as after a forced deletion, do not count although their containers may still stop: the scheduler has given their resources to
// others, which would fail for good. The caller holds mu.
func (m *Manager) activePodsExcept(but *worker) []*corev1.Pod {
	var others []*corev1.Pod
	for _, w := range m.workers {
		known := w.sharedPod.Load()
		if request := m.resizes[w]; request != nil && request.granted {
			known = request.desired
		}
		if w != but && known != nil && w.rejected == nil && !w.preempted && !w.removedFromSource && !w.vacated.Load() {
			others = append(others, known)
		}
	}
	return others
}

// SourcesReady says that all sources have delivered their Pods once. Pods of the runtime that are not among them are
// orphans and are stopped.
func (m *Manager) SourcesReady() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sourcesReady = true
	m.classes.changed.Notify()
	m.evaluateResizes(nil, triggerStart)
	m.stopOrphans()
}

// stopOrphans creates a worker for each Pod that the runtime has and no source has, to stop it. The caller holds mu.
func (m *Manager) stopOrphans() {
	if !m.sourcesReady {
		return
	}
	for _, uid := range m.runtimePods {
		if m.workers[uid] != nil {
			continue
		}
		w := newWorker(m, nil)
		w.uid, w.removed, w.removedFromSource = uid, true, true
		m.deps.Metrics.OrphanedPod()
		m.deps.Logger.Warn("found orphaned Pod in the runtime; stopping it", "uid", uid)
		m.addWorker(w)
	}
	m.runtimePods = nil
	if m.listed {
		m.markReady()
	}
}

// Pods returns the Pods that have a worker, in no order: those that run and those that terminate.
func (m *Manager) Pods() []*corev1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	pods := make([]*corev1.Pod, 0, len(m.workers))
	for _, w := range m.workers {
		if pod := w.sharedPod.Load(); pod != nil {
			pods = append(pods, pod)
		}
	}
	return pods
}

// Has reports whether a Pod has a worker, and therefore may have containers, volumes or files on the node.
func (m *Manager) Has(uid types.UID) bool { return m.worker(uid) != nil }

// Ended returns a channel that is closed when the container does not run any more or is not known.
func (m *Manager) Ended(uid types.UID, containerID string) <-chan struct{} {
	ended := make(chan struct{})
	known := m.postTo(uid, func(w *worker) {
		w.exitWaiters[containerID] = append(w.exitWaiters[containerID], ended)
		w.invalidate()
	})
	if !known {
		close(ended)
	}
	return ended
}

func (m *Manager) worker(uid types.UID) *worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.workers[uid]
}

// addWorker adds a new worker, and starts it if the Manager runs. The caller holds mu.
func (m *Manager) addWorker(w *worker) {
	m.workers[w.uid] = w
	if m.running == nil {
		m.pendingWorkers = append(m.pendingWorkers, w)
		return
	}
	m.startWorker(w)
}

// startWorker starts a worker's goroutine. The caller holds mu.
func (m *Manager) startWorker(w *worker) {
	ctx := m.running
	if ctx.Err() != nil {
		return
	}
	m.group.Go(func() {
		gone := false
		// A worker that ended by a panic would leave its Pod as it is for ever.
		contain.Loop(ctx, "podworker.run", string(w.uid), func(ctx context.Context) { gone = w.waitToStart(ctx) && w.run(ctx) })()
		for range maxPanics {
			if !gone || contain.Do("podworker.removeWorker", string(w.uid), func() error { m.removeWorker(w); return nil }) == nil {
				return
			}
		}
	})
}

// removeWorker removes a worker of whose Pod nothing is left. A Pod that its source has again starts anew.
func (m *Manager) removeWorker(w *worker) {
	m.deps.Statuses.Forget(w.uid)
	m.deps.Images.Forget(w.uid)
	m.deps.Allocations.Forget(w.uid)
	m.deps.Probes.RemovePod(w.uid)
	m.backoff.Forget(w.uid)
	m.deps.OnPodGone(w.uid) // the source of static Pods may now deliver the next Pod, even with the same UID
	m.forgetWorker(w)
	w.drainInbox() // nothing is posted any more
	w.notifyGone()
	m.retryDeferred(triggerRemoval)
}

// forgetWorker removes the worker from those that are known, and begins anew with a Pod that its source has again.
func (m *Manager) forgetWorker(w *worker) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.workers[w.uid] != w {
		return
	}
	delete(m.workers, w.uid)
	m.countRequests(w, nil)
	if again := w.recreated; again != nil {
		m.deps.Metrics.Restarted(podutil.IsStatic(again))
		m.deps.Logger.Info("Pod was recreated with the same UID; restarting its lifecycle",
			"pod", again.Namespace+"/"+again.Name, "uid", again.UID)
		m.deps.Statuses.Observe(again)
		m.addPod(again, w.attempts)
	}
}
