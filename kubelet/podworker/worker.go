package podworker

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/pleg"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/timeline"
)

// resyncPeriod is how long a worker sleeps at most: a net below a lost event.
const resyncPeriod = 5 * time.Minute

// state is how far a Pod's life has gone.
type state int

const (
	syncing state = iota
	terminating
	terminated
)

// worker owns one Pod. All fields but the first group belong to the goroutine of run; everybody else posts.
type worker struct {
	m      *Manager
	uid    types.UID
	logger *slog.Logger
	// sharedPod is the Pod for those who ask, over says that it needs nothing of the node any more.
	sharedPod atomic.Pointer[corev1.Pod]
	released  atomic.Bool
	wake      wakeup.Signal
	// lastState is where the worker stood after its last round; born is when it was made.
	lastState   atomic.Pointer[WorkerState]
	createdAt   time.Time
	runtimeOnly bool // in the runtime alone
	// pulls is from the first pull's begin to the last one's end.
	pulls struct{ from, to time.Time }
	// removedFromSource says that the Pod is gone from its source, again that the source has it anew since, so that it is to begin
	// when nothing is left of this life. The manager's mu guards both.
	removedFromSource bool
	recreated         *corev1.Pod
	// burstableCPU is what the Manager counts for the Pod; the manager's mu guards it.
	burstableCPU int64
	// resizeDeferred says that the Pod waits for resources of the node to become free.
	resizeDeferred atomic.Bool

	mu    sync.Mutex // guards inbox
	inbox []func()

	pod           *corev1.Pod // nil until an unwanted Pod's name was read from the runtime
	state         state
	removed       bool            // gone from the source
	rejected      *status.Failure // not admitted
	failure       *status.Failure // to end as failed
	graceOverride *int64          // grace of an eviction, in seconds

	runtime *container.PodStatus // as last read
	dirty   bool                 // the runtime may hold something else than that
	// eventPending says the same, because an event told so; made is what we have brought up ourselves since the last read.
	eventPending     bool
	startedSinceRead []pleg.Started
	// readErrorReported says that it was told that the last read failed.
	readErrorReported bool
	// forceRead says that a read must not wait for what is under way.
	forceRead bool

	ops     map[string]*op
	running sync.WaitGroup // of ops
	// busy counts calls under way that change the runtime and are over soon: it is not worth reading what they
	// are about to change.
	busy atomic.Int32

	resize         resize
	volumesMounted bool // volumes are mounted
	// networkError is why there was no network for a sandbox when that was said last; empty if there was.
	networkError string
	// sandboxConfig is what the sandbox with the id sandboxConfigID was made with.
	sandboxConfig       *runtimeapi.PodSandboxConfig
	sandboxConfigID     string
	images              map[string]*runtimeapi.Image
	waiting             map[string]status.Waiting  // failed steps, by container
	terminationMessages map[string]string          // termination messages, by container id
	probed              map[string]bool            // container ids whose probes run
	exitWaiters         map[string][]chan struct{} // those who wait for the end of a container, by its id
	preStopDone         *stringSet                 // container ids whose runPreStop hook has run
	reportedBackoffs    map[string]time.Time       // the wait that a BackOff event was sent for, by container
	retries             retries
	nextSync            time.Time // when to look again, zero for never

	podKilled bool // all of it has been asked to stop, and has
	stopped   bool // all containers and sandboxes were stopped
	stopGrace int64
	cleanedUp bool // volumes, cgroup and directories are gone
	reported  bool
	wasReady  bool
	// firstSeen is when a Pod was seen that nobody had acknowledged before; zero when it has come to run.
	firstSeen time.Time
	purged    bool // the runtime and the disk hold nothing any more
	stopSpan  *timeline.Span
}

// op is something under way beside the worker.
type op struct {
	cancel context.CancelFunc
	// blocking keeps later containers from being started.
	blocking bool
}

func newWorker(m *Manager, pod *corev1.Pod) *worker {
	w := &worker{
		m: m, wake: wakeup.NewSignal(), pod: pod, logger: m.deps.Logger, dirty: true, forceRead: true,
		ops: map[string]*op{}, images: map[string]*runtimeapi.Image{}, waiting: map[string]status.Waiting{},
		terminationMessages: map[string]string{}, probed: map[string]bool{}, preStopDone: newStringSet(), reportedBackoffs: map[string]time.Time{},
		retries: retries{}, exitWaiters: map[string][]chan struct{}{}, createdAt: m.deps.Clock.Now(), runtimeOnly: pod == nil,
	}
	w.resize.requested = map[string]*runtimeapi.LinuxContainerResources{}
	if pod != nil {
		w.resize.desired, w.pod = pod, m.deps.Allocations.Allocated(pod)
		if w.pod == nil {
			w.pod = initialAllocation(pod)
		}
		if w.resizeDeferred.Store(isResizeDeferred(pod)); w.resizeDeferred.Load() {
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

// evict makes the worker end the Pod as failed. It may be called from any goroutine.
func (w *worker) evict(failure status.Failure, grace *int64) {
	failure.Disruption = true
	w.post(func() {
		if w.failure != nil {
			return
		}
		w.failure, w.graceOverride = &failure, grace
		if failure.Detail != "" {
			w.m.deps.Metrics.Evicted(failure.Detail)
		}
	})
}

// run works until ctx ends or nothing of the Pod is left, which it reports.
func (w *worker) run(ctx context.Context) (gone bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer w.running.Wait()
	defer cancel()
	w.m.deps.Metrics.WorkerStarted(w.m.deps.Clock.Since(w.createdAt))
	for {
		w.drainInbox()
		w.nextSync = time.Time{}
		if w.timed(func() bool { return w.syncOnce(ctx) }) {
			return true
		}
		if !w.sleep(ctx) {
			return false
		}
	}
}

// drainInbox runs what was posted.
func (w *worker) drainInbox() {
	w.mu.Lock()
	inbox := w.inbox
	w.inbox = nil
	w.mu.Unlock()
	for _, fn := range inbox {
		fn()
	}
	if w.pod != nil {
		w.sharedPod.Store(w.pod)
	}
}

// sleep waits for a post, for the time of the next look, or for the end of ctx.
func (w *worker) sleep(ctx context.Context) bool {
	wait := resyncPeriod
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
		if wait == resyncPeriod {
			w.dirty = true
		}
	}
	return ctx.Err() == nil
}

// syncOnce does one round: read, decide, begin, report. It reports whether nothing of the Pod is left.
func (w *worker) syncOnce(ctx context.Context) (gone bool) {
	if !w.read(ctx) {
		return false
	}
	w.transition()
	switch w.state {
	case syncing:
		w.sync(ctx)
	case terminating:
		w.terminate(ctx)
	case terminated:
		gone = w.finish(ctx)
	}
	w.report()
	return gone
}

// observe takes from a fresh read what others have to know.
func (w *worker) observe(ctx context.Context) {
	if w.pod == nil {
		w.pod = podFromRuntime(w.uid, w.runtime)
		w.logger = w.m.deps.Logger.With("pod", w.pod.Namespace+"/"+w.pod.Name, "uid", w.uid)
		w.sharedPod.Store(w.pod)
	}
	live := map[string]bool{}
	for _, c := range w.runtime.Containers {
		switch c.State {
		case container.StateRunning:
			live[c.ID] = true
			if !w.probed[c.ID] && w.state == syncing {
				w.resumeProbes(c)
			}
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
	for id := range w.terminationMessages {
		if w.runtime.FindID(id) == nil {
			delete(w.terminationMessages, id)
		}
	}
}

// transition moves the state forward if the Pod is to end.
func (w *worker) transition() {
	if w.state != syncing {
		return
	}
	if w.removed || w.rejected != nil || w.failure != nil || w.pod.DeletionTimestamp != nil ||
		podutil.IsTerminal(&w.pod.Status) || w.checkDeadline() {
		w.startTermination()
	}
}

// startTermination begins the Pod's termination: all that is under way is given up.
func (w *worker) startTermination() {
	w.state = terminating
	for _, o := range w.ops {
		o.cancel()
	}
	w.m.deps.Probes.StopLivenessAndStartup(w.uid)
	w.stopSpan = w.m.deps.Timeline.Begin(w.timelineRef(), owner, timeline.StageStop, "")
}

// checkDeadline notes the failure of a Pod that ran for too long, or when that will be.
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

// lastStatus is the Pod's status as last computed, or else as the API server has it.
func (w *worker) lastStatus() corev1.PodStatus {
	if s, ok := w.m.deps.Statuses.Get(w.uid); ok {
		return s
	}
	return w.pod.Status
}

// wakeAt makes the worker look again at the time, at the latest.
func (w *worker) wakeAt(t time.Time) {
	if w.nextSync.IsZero() || t.Before(w.nextSync) {
		w.nextSync = t
	}
}

// startOp runs fn beside the worker. What fn returns runs in the worker's goroutine afterwards. One op of a key runs
// at a time.
func (w *worker) startOp(ctx context.Context, key string, o op, fn func(ctx context.Context) func()) {
	ctx, o.cancel = context.WithCancel(ctx)
	w.ops[key] = &o
	w.running.Go(func() {
		after := fn(ctx)
		w.post(func() {
			delete(w.ops, key)
			after()
			o.cancel()
		})
	})
}

// timelineRef is the Pod in the timeline.
func (w *worker) timelineRef() timeline.Ref { return timeline.PodRef(w.pod) }

func failureError(f *status.Failure) error {
	if f == nil {
		return nil
	}
	return timeline.WithReason(fmt.Errorf("%s: %s", f.Reason, f.Message), f.Reason, "")
}
