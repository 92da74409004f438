package podworker

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/pleg"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/timeline"
)

// DefaultResyncPeriod is how often an idle worker reads the runtime's state: a safety net for a lost event.
const DefaultResyncPeriod = 5 * time.Minute

// state is the phase of a Pod's life on the node. It only goes forward.
type state int

const (
	syncing state = iota
	terminating
	terminated
)

// worker owns one Pod. Its run goroutine is the only one that reads or writes the fields below inbox; every other
// goroutine posts a function that runs there. It is this large because of that ownership: the fields are the state of one
// Pod, and no lock protects them.
type worker struct {
	podActions
	m      *Manager
	uid    types.UID
	logger *slog.Logger
	wake   wakeup.Signal

	// released says that the Pod uses nothing of the node any more, and vacated, which may be earlier, that its resources are free for others.
	released, vacated atomic.Bool
	// lastState is the state after the last sync, for the metrics.
	lastState atomic.Pointer[WorkerState]

	// startAfter are closed when the Pods have ended that end for this one. It does not change once the worker has started.
	startAfter []chan struct{}

	// The manager's mu guards these four: the Pod ends for a critical one; the Pod is gone from its source; the source has it again since, so that it
	// starts anew when nothing of it is left; the requests that the manager counts for it.
	preempted         bool
	removedFromSource bool
	recreated         *corev1.Pod
	counted           cm.Requests

	mu    sync.Mutex // guards inbox
	inbox []func()

	createdAt time.Time
	// runtimeOnly says that the Pod came from the runtime's list and from no source. Then pod is nil until the runtime's
	// state was read.
	runtimeOnly   bool
	pod           *corev1.Pod
	state         state
	updated       bool            // its source has sent another version since the last sync
	removed       bool            // gone from the source
	rejected      *status.Failure // why it was not admitted
	failure       *status.Failure // why it ends as failed
	graceOverride *int64          // grace period of an eviction, in seconds
	eviction      podEviction
	// kills are requests that were not handled yet; killWaiters wait for the end of the Pod's containers, and syncWaiters
	// for the end of a sync, whose errors are syncErrors.
	kills                    []KillRequest
	killWaiters, syncWaiters []func(error)
	syncErrors               []error
	releaseWaiters           []func() // for the end of the use of volumes

	// runtime is the Pod's state in the runtime as last read. dirty says that the state may have changed since, eventPending
	// the same because of an event, forceRead that a read does not wait for calls under way. startedSinceRead is what the
	// worker itself started since the last read.
	runtime                        *container.PodStatus
	dirty, eventPending, forceRead bool
	startedSinceRead               []pleg.Started
	readErrorReported              bool

	ops     map[string]*op
	running sync.WaitGroup // of ops
	// busy counts calls under way that change the runtime and end soon: reading what they are about to change is a waste.
	busy atomic.Int32

	adoption       adoption
	resize         resize
	volumesMounted bool
	networkError   string // the reported reason for which there is no network; empty if there is one
	// sandboxConfig is the configuration of the sandbox sandboxConfigID.
	sandboxConfig   *runtimeapi.PodSandboxConfig
	sandboxConfigID string
	images          map[string]pulledImage
	// pulls spans the time from the start of the first pull to the end of the last one.
	pulls               struct{ from, to time.Time }
	waiting             map[string]status.Waiting  // reasons of failed steps, by container
	terminationMessages map[string]string          // by container id
	probed              map[string]bool            // ids of containers whose probes run
	exitWaiters         map[string][]chan struct{} // closed when the container with that id has ended
	restarting          map[string]bool            // ids of containers that are stopped to be started again
	attempts            map[string]uint32          // restart counts that an earlier Pod with this UID has used, by container
	reportedBackoffs    map[string]time.Time       // ends of the waits that have had a BackOff event, by container
	retries             retries
	nextSync            time.Time // time of the next sync, zero for none

	// panics counts the panics of steps of this Pod, the last at lastPanic; no step begins before quarantinedUntil.
	panics                      int
	lastPanic, quarantinedUntil time.Time

	podKilled bool // the last stop of all containers and sandboxes succeeded
	stopped   bool // all containers and sandboxes have stopped
	stopGrace int64
	// unprepared says that drivers have unprepared the Pod's ResourceClaims since then.
	unprepared bool
	cleanedUp  bool // volumes, cgroup and directories are removed
	reported   bool
	wasReady   bool
	firstSeen  time.Time // of a Pod without a status; zero when it has come to run
	purged     bool      // nothing is left of it in the runtime or on the disk
	stopSpan   *timeline.Span
}

// op is an operation that runs beside the worker.
type op struct {
	cancel context.CancelFunc
	// blocking keeps later containers from being started.
	blocking bool
	// brief is whether it ends in a moment.
	brief bool
}

func newWorker(m *Manager, pod *corev1.Pod) *worker {
	w := &worker{
		podActions: podActions{deps: &m.deps, preStopDone: newStringSet()},
		m:          m, wake: wakeup.NewSignal(), logger: m.deps.Logger, createdAt: m.deps.Clock.Now(),
		pod: pod, runtimeOnly: pod == nil, dirty: true, forceRead: true,
		ops: map[string]*op{}, images: map[string]pulledImage{}, waiting: map[string]status.Waiting{},
		terminationMessages: map[string]string{}, probed: map[string]bool{}, reportedBackoffs: map[string]time.Time{},
		restarting: map[string]bool{}, attempts: map[string]uint32{},
		retries: retries{}, exitWaiters: map[string][]chan struct{}{},
	}
	w.resize.requested, w.resize.pinned = map[string]*runtimeapi.LinuxContainerResources{}, map[string]string{}
	if pod != nil {
		w.resize.desired, w.pod = pod, m.deps.Allocations.Allocated(pod)
		if w.pod == nil {
			w.pod = initialAllocation(pod)
		}
		if w.resize.deferred = isResizeDeferred(pod); w.resize.deferred {
			w.setResizeTrigger(triggerStart)
		}
		if isConditionTrue(pod, corev1.PodResizeInProgress) || m.deps.Allocations.HasPendingActuation(w.pod) {
			w.resize.cgroup, w.resize.inProgress = cgroupStale, true
		}
		w.uid = pod.UID
		if pod.Status.StartTime == nil {
			w.firstSeen = m.deps.Clock.Now()
		}
		w.logger = m.deps.Logger.With("pod", pod.Namespace+"/"+pod.Name, "uid", pod.UID)
		w.sharedPod.Store(w.pod)
	}
	return w
}

// post hands the worker something to do in its own goroutine, and wakes it.
func (w *worker) post(fn func()) {
	w.mu.Lock()
	w.inbox = append(w.inbox, fn)
	w.mu.Unlock()
	w.wake.Notify()
}

// run runs the worker until ctx ends or nothing of the Pod is left, which it reports.
func (w *worker) run(ctx context.Context) (gone bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer w.running.Wait()
	defer cancel()
	w.m.deps.Metrics.WorkerStarted(w.m.deps.Clock.Since(w.createdAt))
	for {
		w.drainInbox()
		w.nextSync = time.Time{}
		if w.timed(func() bool { return w.containedSync(ctx) }) {
			return true
		}
		w.notifySynced()
		if !w.sleep(ctx) {
			return false
		}
	}
}

// drainInbox runs the posted functions.
func (w *worker) drainInbox() {
	w.mu.Lock()
	inbox := w.inbox
	w.inbox = nil
	w.mu.Unlock()
	for _, fn := range inbox {
		var err error
		for range maxPanics { // who posted it does not repeat it
			if err = contain.Do("podworker.post", w.object(), func() error { fn(); return nil }); err == nil {
				break
			}
		}
		if err != nil {
			w.panicked(err)
		}
	}
	if w.pod != nil {
		w.sharedPod.Store(w.pod)
	}
}

// sleep waits for a post, for the time of the next sync, or for the end of ctx.
func (w *worker) sleep(ctx context.Context) bool {
	period := w.m.config.ResyncPeriod
	wait := period
	if !w.nextSync.IsZero() {
		wait = min(wait, max(0, w.nextSync.Sub(w.m.deps.Clock.Now())))
	}
	timer := w.m.deps.Clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-w.wake.C():
	case <-timer.C():
		if wait == period {
			w.dirty = true
		}
	}
	return ctx.Err() == nil
}

// syncOnce reads, decides, starts operations and reports, once. It reports whether nothing of the Pod is left.
func (w *worker) syncOnce(ctx context.Context) (gone bool) {
	if !w.read(ctx) {
		return false
	}
	w.adoptContainers()
	w.handleKills()
	w.transition()
	ctx, span := w.startSpan(ctx)
	defer span.release()
	w.updated = false
	switch w.state {
	case syncing:
		w.sync(ctx)
	case terminating:
		w.terminate(ctx)
		w.pinContainers(ctx)
	case terminated:
		gone = w.finish(ctx)
	}
	w.report()
	return gone
}

// observe passes on what a fresh read of the runtime's state shows: containers that have ended.
func (w *worker) observe(ctx context.Context) {
	if w.pod == nil {
		w.pod = podFromRuntime(w.uid, w.runtime)
		w.logger = w.m.deps.Logger.With("pod", w.pod.Namespace+"/"+w.pod.Name, "uid", w.uid)
		w.sharedPod.Store(w.pod)
	}
	w.recordPlaces()
	live := map[string]bool{}
	for _, c := range w.runtime.Containers {
		switch c.State {
		case container.StateRunning:
			live[c.ID] = true
		case container.StateExited:
			if _, known := w.terminationMessages[c.ID]; !known {
				w.terminationMessages[c.ID] = w.m.deps.Builder.TerminationMessage(ctx, c)
				w.recordInitEnd(c)
			}
		}
	}
	for id := range w.probed {
		if !live[id] {
			delete(w.probed, id)
			w.recordExit(id)
			w.m.deps.Probes.ContainerStopped(w.uid, id)
		}
	}
	for id, waiting := range w.exitWaiters {
		if live[id] {
			continue
		}
		for _, ended := range waiting {
			close(ended)
		}
		delete(w.exitWaiters, id)
	}
	for id := range w.resize.requested {
		if !live[id] {
			delete(w.resize.requested, id)
		}
	}
	for id := range w.resize.pinned {
		if !live[id] {
			delete(w.resize.pinned, id)
		}
	}
	for id := range w.terminationMessages {
		if w.runtime.FindID(id) == nil {
			delete(w.terminationMessages, id)
		}
	}
	for id := range w.restarting {
		if w.runtime.FindID(id) == nil {
			delete(w.restarting, id)
		}
	}
}

// transition moves the state forward if the Pod has to terminate.
func (w *worker) transition() {
	if w.state != syncing {
		return
	}
	if w.removed || w.rejected != nil || w.failure != nil || w.pod.DeletionTimestamp != nil ||
		podutil.IsTerminal(&w.pod.Status) || w.checkDeadline() {
		w.startTermination()
	}
}

// startTermination starts the Pod's termination and cancels all operations.
func (w *worker) startTermination() {
	w.state = terminating
	w.withdrawResize()
	for _, o := range w.ops {
		o.cancel()
	}
	w.m.deps.Probes.StopLivenessAndStartup(w.uid)
	w.stopSpan = w.m.deps.Timeline.Begin(w.timelineRef(), owner, timeline.StageStop, "")
}

// checkDeadline reports whether the Pod has run for longer than it may, and if not, schedules a sync for that time.
func (w *worker) checkDeadline() bool {
	limit := w.pod.Spec.ActiveDeadlineSeconds
	start := w.lastStatus().StartTime
	if limit == nil || start == nil {
		return false
	}
	due := start.Add(time.Duration(*limit) * time.Second)
	if w.m.deps.Clock.Now().Before(due) {
		w.wakeAt(due)
		return false
	}
	w.failure = &status.Failure{
		Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline",
	}
	w.m.deps.Recorder.Event(w.pod, corev1.EventTypeNormal, "DeadlineExceeded", w.failure.Message)
	return true
}

// lastStatus returns the Pod's status as last computed, or else as the API server has it. Of a static Pod that has run before this process,
// the API server has its times.
func (w *worker) lastStatus() corev1.PodStatus {
	if s, ok := w.m.deps.Statuses.Get(w.uid); ok {
		return s
	}
	last := w.pod.Status
	if w.adoption.decided && podutil.IsStatic(w.pod) {
		last.StartTime, last.Conditions = w.adoption.previous.StartTime, w.adoption.previous.Conditions
	}
	return last
}

// wakeAt schedules a sync for the time, at the latest.
func (w *worker) wakeAt(t time.Time) {
	if w.nextSync.IsZero() || t.Before(w.nextSync) {
		w.nextSync = t
	}
}

// startOp runs fn beside the worker, and what fn returns in the worker's goroutine afterwards. Only one operation of a
// key runs at a time.
func (w *worker) startOp(ctx context.Context, key string, o op, fn func(ctx context.Context) func()) {
	ctx, o.cancel = context.WithCancel(ctx)
	w.ops[key] = &o
	span := holdSyncSpan(ctx)
	object := w.object()
	w.running.Go(func() {
		var after func()
		err := contain.Do("podworker."+strings.TrimRight(key, "0123456789"), object, func() error { after = fn(ctx); return nil })
		span.release()
		w.post(func() {
			delete(w.ops, key)
			defer o.cancel()
			if err != nil {
				w.panicked(err)
				return
			}
			after()
		})
	})
}

// timelineRef returns the Pod's reference in the timeline.
func (w *worker) timelineRef() timeline.Ref { return timeline.PodRef(w.pod) }

func failureError(f *status.Failure) error {
	if f == nil {
		return nil
	}
	return timeline.WithReason(fmt.Errorf("%s: %s", f.Reason, f.Message), f.Reason, "")
}
