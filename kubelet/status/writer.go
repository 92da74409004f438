package status

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/lazyqueue"
	"github.com/berth-dev/berth/timeline"
)

const (
	defaultWorkers    = 8
	initialRetryDelay = 50 * time.Millisecond
	maxRetryDelay     = 10 * time.Second
	owner             = "kubelet"

	// The delays before a status is written again that the API server has found invalid.
	initialRefusedDelay = time.Second
	maxRefusedDelay     = 5 * time.Minute
)

// WriterConfig are the values a Writer works with.
type WriterConfig struct {
	// Workers is how many statuses are written at once, one at a time for each Pod; 8 if zero.
	Workers int
}

// WriterDeps are what a Writer needs from others.
type WriterDeps struct {
	// Client writes statuses and deletes finished Pods.
	Client kubernetes.Interface
	// Observe, if set, is called for each written status with the time it took to get to the API server. It must not
	// block.
	Observe func(took time.Duration)
	// Yields, if set, reports whether a write that can wait, and does since that time, is to wait longer for more urgent work.
	Yields func(since time.Time) bool
	// Timeline, Logger and Clock may be nil.
	Timeline *timeline.Recorder
	Logger   *slog.Logger
	Clock    clock.WithTicker
}

// Writer writes statuses to the API server. It is safe for concurrent use.
type Writer struct {
	deps    WriterDeps
	workers int
	queue   *lazyqueue.Queue[types.UID]

	mu   sync.Mutex // guards pods and the entries
	pods map[types.UID]*entry
}

// entry is one Pod's status to be written.
type entry struct {
	// api is the last known version of the Pod in the API server.
	api *corev1.Pod
	// want is the status to be written; set says that there is one.
	want corev1.PodStatus
	set  bool
	// delayed says that the pending write may wait. requestedAt is when it was requested, or becomes due if it is delayed,
	// zero if there is none; a request that may not wait counts anew. delayedSince is when the pending write was first delayed.
	requestedAt, delayedSince time.Time
	delayed                   bool
	// urgent says that the next write may not wait.
	urgent bool
	// finish says that the Pod's object is deleted after want is written, finished that it was.
	finish, finished bool
	// refusals counts how often the API server has refused want.
	refusals int
}

// NewWriter returns a Writer. Start runs it.
func NewWriter(deps WriterDeps, config WriterConfig) (*Writer, error) {
	if deps.Client == nil {
		return nil, errors.New("status: WriterDeps.Client is required")
	}
	if config.Workers <= 0 {
		config.Workers = defaultWorkers
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	return &Writer{deps: deps, workers: config.Workers, pods: map[types.UID]*entry{}, queue: newQueue(deps.Clock)}, nil
}

func newQueue(clock clock.WithTicker) *lazyqueue.Queue[types.UID] {
	return lazyqueue.New[types.UID](lazyqueue.Config{
		Name: "pod_status", InitialDelay: initialRetryDelay, MaxDelay: maxRetryDelay, Clock: clock,
	})
}

// Start writes statuses until ctx ends. The next process computes again what was not written by then.
func (w *Writer) Start(ctx context.Context) error {
	w.queue.Start()
	var group errgroup.Group
	for range w.workers {
		group.Go(contain.Func("status.Start", "", func() error {
			for {
				uid, quit := w.queue.Get()
				if quit {
					return nil
				}
				if contain.Do("status.write", string(uid), func() error { w.process(ctx, uid); return nil }) != nil {
					w.queue.AddRateLimited(uid) // without its last status a deleted Pod would stay
				}
				w.queue.Done(uid)
			}
		}))
	}
	<-ctx.Done()
	w.queue.ShutDown()
	return group.Wait()
}

// Set requests that the status is written, unless it equals the last one. It reports whether it changed.
func (w *Writer) Set(pod *corev1.Pod, status corev1.PodStatus) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entry(pod)
	if e.set && apiequality.Semantic.DeepEqual(e.want, status) {
		return false
	}
	e.want, e.set, e.refusals = status, true, 0
	delayed := w.enqueue(e)
	if e.requestedAt.IsZero() || e.delayed && !delayed {
		e.requestedAt = w.deps.Clock.Now()
		if delayed {
			e.delayedSince, e.requestedAt = e.requestedAt, e.requestedAt.Add(debounceDelay)
		}
	}
	e.delayed = delayed
	return true
}

// enqueue queues the write of an entry, after debounceDelay if it may be delayed, which it reports. The caller holds mu.
func (w *Writer) enqueue(e *entry) (delayed bool) {
	if e.canDelay() {
		w.queue.AddAfter(e.api.UID, debounceDelay)
		return true
	}
	w.queue.Add(e.api.UID)
	return false
}

// canDelay reports whether the write of the entry may wait.
func (e *entry) canDelay() bool {
	return !e.finish && !e.urgent && canDelay(e.api, merge(e.api, e.want))
}

// yields reports whether a delayed write waits once more, for which it queues it. The caller holds mu.
func (w *Writer) yields(e *entry) bool {
	if !e.delayed || w.deps.Yields == nil || !w.deps.Yields(e.delayedSince) || !e.canDelay() {
		return false
	}
	e.requestedAt = w.deps.Clock.Now().Add(debounceDelay)
	w.queue.AddAfter(e.api.UID, debounceDelay)
	return true
}

// Hurry has a Pod's next status written at once, or the one that waits: what the Pod waits for has failed, and users look for the status of a
// Pod about which they see an event.
func (w *Writer) Hurry(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.pods[uid]
	if e == nil || e.urgent {
		return
	}
	e.urgent = true
	if e.delayed && !e.requestedAt.IsZero() {
		e.delayed, e.requestedAt = false, w.deps.Clock.Now()
		w.queue.Add(uid)
	}
}

// Get returns the last status of Set.
func (w *Writer) Get(uid types.UID) (corev1.PodStatus, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e, ok := w.pods[uid]; ok && e.set {
		return *e.want.DeepCopy(), true
	}
	return corev1.PodStatus{}, false
}

// Observe records the Pod as the API server has it. A status that differs from the last one of Set is written again.
func (w *Writer) Observe(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entry(pod)
	if older(pod, e.api) {
		return
	}
	e.api = pod
	if e.set && !apiequality.Semantic.DeepEqual(pod.Status, merge(pod, e.want)) {
		w.enqueue(e)
	}
}

// Finish requests that the Pod's object is deleted for good after its last status was written. It is called when nothing
// of the Pod runs or is mounted on the node, and its deletion was requested.
func (w *Writer) Finish(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.entry(pod)
	if !e.finish {
		e.finish = true
		w.queue.Add(pod.UID)
	}
}

// Forget drops the state of a Pod.
func (w *Writer) Forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, uid)
	w.queue.Forget(uid)
}

// entry finds or makes a Pod's entry. The caller holds mu.
func (w *Writer) entry(pod *corev1.Pod) *entry {
	e, ok := w.pods[pod.UID]
	if !ok {
		e = &entry{api: pod}
		w.pods[pod.UID] = e
	}
	return e
}

// begin returns a Pod's entry, nil if it has none, and what is to be written of it, nil if that has to wait.
func (w *Writer) begin(uid types.UID) (e, current *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e = w.pods[uid]
	if e == nil || w.yields(e) {
		return e, nil
	}
	copied := *e
	e.requestedAt = time.Time{}
	return e, &copied
}

// process writes one Pod's status, and deletes its object if that was requested.
func (w *Writer) process(ctx context.Context, uid types.UID) {
	if ctx.Err() != nil {
		return
	}
	e, current := w.begin(uid)
	switch {
	case e == nil:
		w.queue.Forget(uid)
		return
	case current == nil:
		return
	}
	err := w.write(ctx, *current)
	switch {
	case err == nil:
		w.mu.Lock()
		e.refusals, e.finished = 0, current.finish
		e.urgent = e.urgent && !current.urgent // one that came meanwhile is for the next status
		w.mu.Unlock()
		w.queue.Forget(uid)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err) && isUIDConflict(err):
		// The Pod is gone, or another one has its name now; the watch will show that.
		w.queue.Forget(uid)
	case ctx.Err() == nil:
		w.deps.Logger.Warn("failed to write the status of a Pod; retrying", "pod", current.api.Namespace+"/"+current.api.Name,
			"uid", uid, "error", err)
		w.retry(uid, e, isInvalid(err))
	}
}

// retry queues an entry again whose write failed. The API server will say the same of a status that is invalid, until one of the two changes.
func (w *Writer) retry(uid types.UID, e *entry, invalid bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.requestedAt.IsZero() {
		e.requestedAt = w.deps.Clock.Now()
	}
	if !invalid {
		w.queue.AddRateLimited(uid)
		return
	}
	w.queue.AddAfter(uid, min(initialRefusedDelay<<min(e.refusals, 16), maxRefusedDelay))
	e.refusals++
}

// write writes one entry to the API server.
func (w *Writer) write(ctx context.Context, e entry) error {
	if e.set {
		status := merge(e.api, e.want)
		if !apiequality.Semantic.DeepEqual(e.api.Status, status) {
			api, err := w.patch(ctx, e.api, status, e.requestedAt)
			if err != nil {
				return err
			}
			w.storeWritten(api)
			if w.deps.Observe != nil && !e.requestedAt.IsZero() {
				w.deps.Observe(max(0, w.deps.Clock.Since(e.requestedAt)))
			}
		}
	}
	if e.finish && !e.finished {
		return w.remove(ctx, e.api)
	}
	return nil
}

// storeWritten stores the result of a patch, unless the watch has delivered the same version, which is in memory
// already.
func (w *Writer) storeWritten(api *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e, ok := w.pods[api.UID]; ok && !same(api, e.api) && !older(api, e.api) {
		api.ManagedFields = nil // the kubelet does not use them
		e.api = api
	}
}

// same reports whether both are the same version of the object.
func same(a, b *corev1.Pod) bool {
	return a.ResourceVersion != "" && a.ResourceVersion == b.ResourceVersion
}

// older reports whether a is an older version of the object than b.
func older(a, b *corev1.Pod) bool {
	x, errA := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, errB := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return errA == nil && errB == nil && x < y
}
