package podworker

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
)

// Metrics records what the workers do. Its methods are called by many goroutines and do not block.
type Metrics interface {
	// SandboxStarted records an attempt to run a Pod's sandbox; first is set for the Pod's first one.
	SandboxStarted(pod *corev1.Pod, first bool, err error)
	// ContainerStarted records an attempt to create and start a container. The reason is that of its status if the
	// attempt failed.
	ContainerStarted(pod *corev1.Pod, kind podutil.Kind, reason string, err error)
	// ImageVolumes records the attempt to create a container that mounts so many image volumes at so many paths, and whether the runtime
	// has mounted them.
	ImageVolumes(volumes, mounts int, mounted bool)
	// ContainerEnded records a container that ran and has ended.
	ContainerEnded(kind podutil.Kind, exitCode int32, reason string)
	// PodRunning records, once for a Pod that this process has seen from its start, when it runs. own is the time since
	// its creation without pulls and init containers; it is negative for a Pod that waits for storage of its own too.
	PodRunning(sinceSeen, sinceCreated, own time.Duration)
	// WorkerStarted records how long after its creation a worker started, SyncDuration how long one of its syncs took.
	WorkerStarted(after time.Duration)
	SyncDuration(kind string, took time.Duration)
	// OrphanedPod records a Pod that the runtime has and no source has.
	OrphanedPod()
	// Restarted records a Pod that its source had again, with the same UID, before the last of it was gone.
	Restarted(static bool)
	// ResizeRequested records one amount that a new version of a Pod changes: "cpu" or "memory" of a container's
	// "requests" or "limits", and the operation "add", "remove", "increase" or "decrease".
	ResizeRequested(resource, requirement, operation string)
	// ResizeAccepted records a deferred resize that was allocated, and what triggered the attempt.
	ResizeAccepted(trigger string)
	// ResizeFinished records a resize that is in effect, or a failed attempt, with the time since its allocation;
	// ResizeInfeasible a resize that never can be, and why.
	ResizeFinished(took time.Duration, ok bool)
	ResizeInfeasible(detail string)
	// Evicted records, once for a Pod, an eviction with a signal.
	Evicted(signal string)
	// Preempted records that a Pod ends for a critical one, which lacks the resource.
	Preempted(resource string)
}

// WorkerState is the state of a Pod's worker: its lifecycle is sync, terminating or terminated, its configuration
// desired, orphan (gone from its source) or runtime_only (never in a source). Of the last it is not known whether they are static.
type WorkerState struct {
	Lifecycle, Config string
	Static            bool
}

// CountByState counts the workers by their state. States that no worker is in are among them, with 0.
func (m *Manager) CountByState() map[WorkerState]int {
	counts := map[WorkerState]int{}
	for _, lifecycle := range lifecycleNames {
		counts[WorkerState{Lifecycle: lifecycle, Config: ConfigRuntimeOnly}] = 0
		for _, config := range []string{ConfigDesired, ConfigOrphan} {
			counts[WorkerState{lifecycle, config, false}], counts[WorkerState{lifecycle, config, true}] = 0, 0
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.workers {
		if at := w.lastState.Load(); at != nil {
			counts[*at]++
		}
	}
	return counts
}

// IsDesired reports whether a source has the Pod. One that its source has removed may still run.
func (m *Manager) IsDesired(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.workers[uid]
	return w != nil && (!w.removedFromSource || w.recreated != nil)
}

// The configurations of WorkerState.
const ConfigDesired, ConfigOrphan, ConfigRuntimeOnly = "desired", "orphan", "runtime_only"

// lifecycleNames are the names of states as upstream's metrics have them.
var lifecycleNames = map[state]string{syncing: "sync", terminating: "terminating", terminated: "terminated"}

// timed runs one sync and records how long it took.
func (w *worker) timed(sync func() bool) bool {
	kind, start := lifecycleNames[w.state], w.m.deps.Clock.Now()
	if w.lastState.Load() == nil {
		kind = "create"
	}
	gone := sync()
	w.m.deps.Metrics.SyncDuration(kind, w.m.deps.Clock.Since(start))
	at := WorkerState{Lifecycle: lifecycleNames[w.state], Config: ConfigDesired}
	switch {
	case w.runtimeOnly:
		at.Config = ConfigRuntimeOnly
	case w.removed:
		at.Config = ConfigOrphan
	}
	if w.pod != nil && !w.runtimeOnly {
		at.Static = podutil.IsStatic(w.pod)
	}
	w.lastState.Store(&at)
	return gone
}

// sliDuration returns how long the Pod took to run since its creation, without pulls and init containers.
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

// recordExit records a container that ran and has ended.
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

// recordResizeRequest records the amounts that differ between two versions of a Pod, and that a resize is to be tried.
func (w *worker) recordResizeRequest(old, pod *corev1.Pod) {
	if old == nil || sameResources(old, pod) {
		return
	}
	w.setResizeTrigger(triggerUpdate)
	record := func(before, now []corev1.Container) {
		for i := range now {
			at := slices.IndexFunc(before, func(c corev1.Container) bool { return c.Name == now[i].Name })
			if at < 0 {
				continue
			}
			w.recordAmounts("requests", before[at].Resources.Requests, now[i].Resources.Requests)
			w.recordAmounts("limits", before[at].Resources.Limits, now[i].Resources.Limits)
		}
	}
	record(old.Spec.InitContainers, pod.Spec.InitContainers)
	record(old.Spec.Containers, pod.Spec.Containers)
}

// recordAmounts records the amounts that differ. An amount of zero counts as none.
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

// recordResizeResult records an allocated change that is in effect or has failed, unless an earlier process started it.
func (w *worker) recordResizeResult(ok bool) {
	if begun := w.resize.startedAt; !begun.IsZero() {
		w.m.deps.Metrics.ResizeFinished(w.m.deps.Clock.Since(begun), ok)
	}
}

// noMetrics records nothing.
type noMetrics struct{}

var _ Metrics = noMetrics{}

// SandboxStarted implements Metrics.
func (noMetrics) SandboxStarted(*corev1.Pod, bool, error) {}

// ContainerStarted implements Metrics.
func (noMetrics) ContainerStarted(*corev1.Pod, podutil.Kind, string, error) {}

// PodRunning implements Metrics.
func (noMetrics) PodRunning(time.Duration, time.Duration, time.Duration) {}

// The rest implements Metrics.
func (noMetrics) ImageVolumes(int, int, bool)                {}
func (noMetrics) ContainerEnded(podutil.Kind, int32, string) {}
func (noMetrics) WorkerStarted(time.Duration)                {}
func (noMetrics) SyncDuration(string, time.Duration)         {}
func (noMetrics) OrphanedPod()                               {}
func (noMetrics) Restarted(bool)                             {}
func (noMetrics) ResizeRequested(string, string, string)     {}
func (noMetrics) ResizeAccepted(string)                      {}
func (noMetrics) ResizeFinished(time.Duration, bool)         {}
func (noMetrics) ResizeInfeasible(string)                    {}
func (noMetrics) Preempted(string)                           {}
func (noMetrics) Evicted(string)                             {}
