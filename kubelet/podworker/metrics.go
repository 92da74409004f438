package podworker

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
)

// Metrics is told what the workers do. Its methods are called from many goroutines, and do not block.
type Metrics interface {
	// SandboxStarted is told of each try to run a Pod's sandbox; of a Pod's first one if first is set.
	SandboxStarted(first bool, err error)
	// ContainerStarted is told of each try to make and start a container. The reason is that of its status if the try
	// failed.
	ContainerStarted(kind podutil.Kind, reason string, err error)
	// ContainerEnded is told of each instance that was seen to run and has ended.
	ContainerEnded(kind podutil.Kind, exitCode int32, reason string)
	// PodRunning is told once of each Pod that this process has seen from its beginning, when it has come to run. own is
	// the time since its creation without that of pulls and init containers; negative for a Pod that waits for storage
	// of its own too.
	PodRunning(sinceSeen, sinceCreated, own time.Duration)
	// WorkerStarted is told of each worker how long after its Pod was seen it began, Round of each of its looks.
	WorkerStarted(after time.Duration)
	SyncDuration(kind string, took time.Duration)
	// OrphanedPod is told of each Pod that the runtime held and nobody wanted.
	OrphanedPod()
	// Restarted is told of each Pod that its source had again, under the same UID, before the last of it was gone.
	Restarted(static bool)
	// ResizeRequested is told of each amount in which a new version of a Pod differs from the one before it: "cpu" or
	// "memory" of a container's "requests" or "limits", and whether it was to "add", "remove", "increase" or "decrease" it.
	ResizeRequested(resource, requirement, operation string)
	// ResizeAccepted is told of each change that had to wait for room and was granted, and what made the worker ask again.
	ResizeAccepted(trigger string)
	// ResizeFinished is told of each change of resources that is in force, and of each try that failed, with the time since it
	// was granted; Infeasible of each change that never can be, and why.
	ResizeFinished(took time.Duration, ok bool)
	ResizeInfeasible(detail string)
	// Evicted is told once of each Pod that is evicted by a signal.
	Evicted(signal string)
}

// WorkerState is where a Pod's worker stands: its lifecycle is sync, terminating or terminated, its configuration desired,
// orphan (gone from its source) or runtime_only (never in one).
type WorkerState struct {
	Lifecycle, Config string
	Static            bool
}

// CountByState counts the workers by where they stand.
func (m *Manager) CountByState() map[WorkerState]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := map[WorkerState]int{}
	for _, w := range m.workers {
		if at := w.lastState.Load(); at != nil {
			counts[*at]++
		}
	}
	return counts
}

// lifecycleNames are upstream's words for states.
var lifecycleNames = map[state]string{syncing: "sync", terminating: "terminating", terminated: "terminated"}

// timed does one round and tells how long it took.
func (w *worker) timed(look func() bool) bool {
	kind, start := lifecycleNames[w.state], w.m.deps.Clock.Now()
	if w.lastState.Load() == nil {
		kind = "create"
	}
	gone := look()
	w.m.deps.Metrics.SyncDuration(kind, w.m.deps.Clock.Since(start))
	at := WorkerState{Lifecycle: lifecycleNames[w.state], Config: "desired"}
	switch {
	case w.runtimeOnly:
		at.Config = "runtime_only"
	case w.removed:
		at.Config = "orphan"
	}
	if w.pod != nil {
		at.Static = podutil.IsStatic(w.pod)
	}
	w.lastState.Store(&at)
	return gone
}

// sliDuration is how long the Pod took to run since its creation, without pulls and init containers.
func (w *worker) sliDuration(sinceCreated time.Duration) time.Duration {
	for _, v := range w.pod.Spec.Volumes {
		if v.Secret == nil && v.ConfigMap == nil && v.DownwardAPI == nil && v.Projected == nil && v.EmptyDir == nil {
			return -1
		}
	}
	own := sinceCreated - w.pulls.to.Sub(w.pulls.from)
	for c, kind := range podutil.Containers(&w.pod.Spec) {
		if kind != podutil.Init || podutil.IsSidecar(c, kind) {
			continue
		}
		for _, ran := range w.runtime.Containers {
			if ran.Name == c.Name && !ran.StartedAt.IsZero() && ran.FinishedAt.After(ran.StartedAt) {
				own -= ran.FinishedAt.Sub(ran.StartedAt)
			}
		}
	}
	return max(own, 0)
}

// recordExit tells of an instance that ran.
func (w *worker) recordExit(id string) {
	c := w.runtime.FindID(id)
	if c == nil || c.State != container.StateExited || w.pod == nil {
		return
	}
	spec, kind := podutil.FindContainer(&w.pod.Spec, c.Name)
	if spec == nil {
		kind = podutil.Regular
	}
	w.m.deps.Metrics.ContainerEnded(kind, int32(c.ExitCode), c.Reason)
}

// recordResizeRequest tells which amounts differ between two versions of a Pod, and notes that there is something to ask for.
func (w *worker) recordResizeRequest(old, pod *corev1.Pod) {
	if old == nil || sameResources(old, pod) {
		return
	}
	w.setResizeTrigger(triggerUpdate)
	tell := func(before, now []corev1.Container) {
		for i := range now {
			at := slices.IndexFunc(before, func(c corev1.Container) bool { return c.Name == now[i].Name })
			if at < 0 {
				continue
			}
			w.recordAmounts("requests", before[at].Resources.Requests, now[i].Resources.Requests)
			w.recordAmounts("limits", before[at].Resources.Limits, now[i].Resources.Limits)
		}
	}
	tell(old.Spec.InitContainers, pod.Spec.InitContainers)
	tell(old.Spec.Containers, pod.Spec.Containers)
}

// recordAmounts tells of the amounts that differ. One of zero is as good as none.
func (w *worker) recordAmounts(requirement string, before, now corev1.ResourceList) {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		had, wants := before[name], now[name]
		operation := ""
		switch change := wants.Cmp(had); {
		case change == 0:
			continue
		case wants.IsZero():
			operation = "remove"
		case had.IsZero():
			operation = "add"
		case change < 0:
			operation = "decrease"
		default:
			operation = "increase"
		}
		w.m.deps.Metrics.ResizeRequested(string(name), requirement, operation)
	}
}

// recordResizeResult tells of a granted change that is in force or that failed, unless an earlier process has begun it.
func (w *worker) recordResizeResult(ok bool) {
	if begun := w.resize.startedAt; !begun.IsZero() {
		w.m.deps.Metrics.ResizeFinished(w.m.deps.Clock.Since(begun), ok)
	}
}

// noMetrics is told in vain.
type noMetrics struct{}

var _ Metrics = noMetrics{}

// SandboxStarted implements Metrics.
func (noMetrics) SandboxStarted(bool, error) {}

// ContainerStarted implements Metrics.
func (noMetrics) ContainerStarted(podutil.Kind, string, error) {}

// PodRunning implements Metrics.
func (noMetrics) PodRunning(time.Duration, time.Duration, time.Duration) {}

// The rest implements Metrics.
func (noMetrics) ContainerEnded(podutil.Kind, int32, string) {}
func (noMetrics) WorkerStarted(time.Duration)                {}
func (noMetrics) SyncDuration(string, time.Duration)         {}
func (noMetrics) OrphanedPod()                               {}
func (noMetrics) Restarted(bool)                             {}
func (noMetrics) ResizeRequested(string, string, string)     {}
func (noMetrics) ResizeAccepted(string)                      {}
func (noMetrics) ResizeFinished(time.Duration, bool)         {}
func (noMetrics) ResizeInfeasible(string)                    {}
func (noMetrics) Evicted(string)                             {}
