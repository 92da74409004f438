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

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/pleg"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/timeline"
)

// auditPeriod is how long a worker sleeps at most: a net below a lost event.
const auditPeriod = 5 * time.Minute

// state is how far a Pod's life has gone.
type state int

const (
	syncing state = iota
	terminating
	terminated
)

// worker owns one Pod. All fields but the first group belong to the goroutine of run; everybody else posts.
type worker struct {
	m   *Manager
	uid types.UID
	log *slog.Logger
	// known is the Pod for those who ask, over says that it needs nothing of the node any more.
	known atomic.Pointer[corev1.Pod]
	over  atomic.Bool
	wake  chan struct{}
	// place is where the worker stood after its last round; born is when it was made.
	place atomic.Pointer[Place]
	born  time.Time
	found bool // in the runtime alone
	// pulls is from the first pull's begin to the last one's end.
	pulls struct{ from, to time.Time }
	// leaving says that the Pod is gone from its source, again that the source has it anew since, so that it is to begin
	// when nothing is left of this life. The manager's mu guards both.
	leaving bool
	again   *corev1.Pod
	// deferred says that the Pod waits for resources of the node to become free.
	deferred atomic.Bool

	mu    sync.Mutex // guards inbox
	inbox []func()

	pod      *corev1.Pod // nil until an unwanted Pod's name was read from the runtime
	state    state
	removed  bool            // gone from the source
	rejected *status.Failure // not admitted
	failure  *status.Failure // to end as failed
	override *int64          // grace of an eviction, in seconds

	runtime *container.PodStatus // as last read
	changed bool                 // the runtime may hold something else than that
	// heard says the same, because an event told so; made is what we have brought up ourselves since the last read.
	heard bool
	made  []pleg.Made
	// blind says that it was told that the last read failed.
	blind bool
	// urgent says that a read must not wait for what is under way.
	urgent bool

	ops     map[string]*op
	running sync.WaitGroup // of ops
	// busy counts calls under way that change the runtime and are over soon: it is not worth reading what they
	// are about to change.
	busy atomic.Int32

	resize   resize
	prepared bool // volumes are mounted
	// offline is why there was no network for a sandbox when that was said last; empty if there was.
	offline string
	// config is what the sandbox with the id configOf was made with.
	config   *runtimeapi.PodSandboxConfig
	configOf string
	images   map[string]*runtimeapi.Image
	waiting  map[string]status.Waiting  // failed steps, by container
	messages map[string]string          // termination messages, by container id
	adopted  map[string]bool            // container ids whose probes run
	watched  map[string][]chan struct{} // those who wait for the end of a container, by its id
	hooked   *set                       // container ids whose preStop hook has run
	backoffs map[string]time.Time       // the wait that a BackOff event was sent for, by container
	retries  retries
	next     time.Time // when to look again, zero for never

	killed   bool // all of it has been asked to stop, and has
	stopped  bool // all containers and sandboxes were stopped
	grace    int64
	cleaned  bool // volumes, cgroup and directories are gone
	reported bool
	wasReady bool
	// since is when a Pod was seen that nobody had acknowledged before; zero when it has come to run.
	since    time.Time
	purged   bool // the runtime and the disk hold nothing any more
	stopSpan *timeline.Span
}

// op is something under way beside the worker.
type op struct {
	cancel context.CancelFunc
	// hold keeps later containers from being started.
	hold bool
}

func newWorker(m *Manager, pod *corev1.Pod) *worker {
	w := &worker{
		m: m, wake: make(chan struct{}, 1), pod: pod, log: m.deps.Logger, changed: true, urgent: true,
		ops: map[string]*op{}, images: map[string]*runtimeapi.Image{}, waiting: map[string]status.Waiting{},
		messages: map[string]string{}, adopted: map[string]bool{}, hooked: newSet(), backoffs: map[string]time.Time{},
		retries: retries{}, watched: map[string][]chan struct{}{}, born: m.deps.Clock.Now(), found: pod == nil,
	}
	w.resize.asked = map[string]*runtimeapi.LinuxContainerResources{}
	if pod != nil {
		w.resize.desired, w.pod = pod, m.deps.Allocations.Granted(pod)
		if w.pod == nil {
			w.pod = firstGrant(pod)
		}
		if w.deferred.Store(defers(pod)); w.deferred.Load() {
			w.ask(byStart)
		}
		if hasCondition(pod, corev1.PodResizeInProgress) || m.deps.Allocations.Unsettled(w.pod) {
			w.resize.group, w.resize.under = groupTight, true
		}
		w.uid = pod.UID
		if pod.Status.StartTime == nil {
			w.since = m.deps.Clock.Now()
		}
		w.log = m.deps.Logger.With("pod", pod.Namespace+"/"+pod.Name, "uid", pod.UID)
		w.known.Store(w.pod)
	}
	return w
}

// post hands the worker something to do in its own goroutine, and wakes it.
func (w *worker) post(fn func()) {
	w.mu.Lock()
	w.inbox = append(w.inbox, fn)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run works until ctx ends or nothing of the Pod is left, which it reports.
func (w *worker) run(ctx context.Context) (gone bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer w.running.Wait()
	defer cancel()
	w.m.deps.Metrics.WorkerStarted(w.m.deps.Clock.Since(w.born))
	for {
		w.takeIn()
		w.next = time.Time{}
		if w.measured(func() bool { return w.look(ctx) }) {
			return true
		}
		if !w.sleep(ctx) {
			return false
		}
	}
}

// takeIn runs what was posted.
func (w *worker) takeIn() {
	w.mu.Lock()
	inbox := w.inbox
	w.inbox = nil
	w.mu.Unlock()
	for _, fn := range inbox {
		fn()
	}
	if w.pod != nil {
		w.known.Store(w.pod)
	}
}

// sleep waits for a post, for the time of the next look, or for the end of ctx.
func (w *worker) sleep(ctx context.Context) bool {
	wait := auditPeriod
	if !w.next.IsZero() {
		wait = min(wait, max(0, w.next.Sub(w.m.deps.Clock.Now())))
	}
	timer := w.m.deps.Clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-w.wake:
	case <-timer.C():
		if wait == auditPeriod {
			w.changed = true
		}
	}
	return ctx.Err() == nil
}

// look does one round: read, decide, begin, report. It reports whether nothing of the Pod is left.
func (w *worker) look(ctx context.Context) (gone bool) {
	if !w.read(ctx) {
		return false
	}
	w.advance()
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

// learn takes from a fresh read what others have to know.
func (w *worker) learn(ctx context.Context) {
	if w.pod == nil {
		w.pod = podFromRuntime(w.uid, w.runtime)
		w.log = w.m.deps.Logger.With("pod", w.pod.Namespace+"/"+w.pod.Name, "uid", w.uid)
		w.known.Store(w.pod)
	}
	live := map[string]bool{}
	for _, c := range w.runtime.Containers {
		switch c.State {
		case container.StateRunning:
			live[c.ID] = true
			if !w.adopted[c.ID] && w.state == syncing {
				w.probe(c)
			}
		case container.StateExited:
			if _, known := w.messages[c.ID]; !known {
				w.messages[c.ID] = w.m.deps.Builder.TerminationMessage(ctx, c)
				w.initEnded(c)
			}
		}
	}
	for id := range w.adopted {
		if !live[id] {
			delete(w.adopted, id)
			w.tellEnd(id)
			w.m.deps.Probes.ContainerStopped(w.uid, id)
		}
	}
	for id, waiting := range w.watched {
		if live[id] {
			continue
		}
		for _, ended := range waiting {
			close(ended)
		}
		delete(w.watched, id)
	}
	for id := range w.resize.asked {
		if !live[id] {
			delete(w.resize.asked, id)
		}
	}
	for id := range w.messages {
		if w.runtime.FindID(id) == nil {
			delete(w.messages, id)
		}
	}
}

// advance moves the state forward if the Pod is to end.
func (w *worker) advance() {
	if w.state != syncing {
		return
	}
	if w.removed || w.rejected != nil || w.failure != nil || w.pod.DeletionTimestamp != nil ||
		status.Terminal(w.pod.Status.Phase) || w.deadline() {
		w.end()
	}
}

// end begins the Pod's termination: all that is under way is given up.
func (w *worker) end() {
	w.state = terminating
	for _, o := range w.ops {
		o.cancel()
	}
	w.m.deps.Probes.StopLivenessAndStartup(w.uid)
	w.stopSpan = w.m.deps.Timeline.Begin(w.ref(), owner, timeline.StageStop, "")
}

// deadline notes the failure of a Pod that ran for too long, or when that will be.
func (w *worker) deadline() bool {
	limit := w.pod.Spec.ActiveDeadlineSeconds
	start := w.status().StartTime
	if limit == nil || start == nil {
		return false
	}
	due := start.Add(time.Duration(*limit) * time.Second)
	if w.m.deps.Clock.Now().Before(due) {
		w.lookAt(due)
		return false
	}
	w.failure = &status.Failure{
		Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline",
	}
	w.m.deps.Recorder.Event(w.pod, corev1.EventTypeNormal, "DeadlineExceeded", w.failure.Message)
	return true
}

// status is the Pod's status as last computed, or else as the API server has it.
func (w *worker) status() corev1.PodStatus {
	if s, ok := w.m.deps.Statuses.Get(w.uid); ok {
		return s
	}
	return w.pod.Status
}

// lookAt makes the worker look again at the time, at the latest.
func (w *worker) lookAt(t time.Time) {
	if w.next.IsZero() || t.Before(w.next) {
		w.next = t
	}
}

// begin runs fn beside the worker. What fn returns runs in the worker's goroutine afterwards. One op of a key runs
// at a time.
func (w *worker) begin(ctx context.Context, key string, o op, fn func(ctx context.Context) func()) {
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

// ref is the Pod in the timeline.
func (w *worker) ref() timeline.Ref { return timeline.PodRef(w.pod) }

func asError(f *status.Failure) error {
	if f == nil {
		return nil
	}
	return timeline.WithReason(fmt.Errorf("%s: %s", f.Reason, f.Message), f.Reason, "")
}
