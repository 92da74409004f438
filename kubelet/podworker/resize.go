package podworker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/status"
)

const opResize = "resize"

// cgroupState is how the Pod's control group stands to the resources that were granted.
type cgroupState int

const (
	cgroupCurrent   cgroupState = iota // as granted, as far as is known
	cgroupStale                        // may be too small for what was granted
	cgroupUnlimited                    // without limits, while the containers' limits change
)

// resize is what a worker knows of a change of its Pod's resources. The Pod as the source has it says what is wanted;
// the worker's own copy of it, which all decisions are made from, has the resources that were granted.
type resize struct {
	desired *corev1.Pod // as the source has it
	pending *status.Failure
	cgroup  cgroupState
	// requested is what a running instance was last told to have, by its id.
	requested         map[string]*runtimeapi.LinuxContainerResources
	pendingContainers map[string]bool // names of the containers that do not have it yet
	lastErr           string
	inProgress        bool // a change is under way, and its end is to be told of
	startedAt         time.Time
	// trigger is the first thing that gave reason to ask again for what is deferred; empty if nothing did since.
	trigger string
}

// What makes a worker ask again for resources that were deferred, in upstream's words.
const (
	triggerUpdate   = "pod_updated" // of the Pod itself
	triggerStart    = "pods_added"  // of the node agent, which has all its Pods anew
	triggerRemoval  = "pods_removed"
	triggerEnd      = "pod_terminated"
	triggerResize   = "pod_resized"    // of another Pod
	triggerPeriodic = "periodic_retry" // a look that the worker took for another reason
)

// updatePod takes a new version of the Pod from the source. What it may use of the node stays as it was granted.
func (w *worker) updatePod(pod *corev1.Pod) {
	w.recordResizeRequest(w.resize.desired, pod)
	w.resize.desired = pod
	w.pod = withResources(pod, w.pod)
}

// setResizeTrigger notes why the worker asks again for what was deferred.
func (w *worker) setResizeTrigger(trigger string) {
	w.resize.trigger = cmp.Or(w.resize.trigger, trigger)
}

// initialAllocation is the Pod as an earlier process has granted it, where nothing was noted of that: as its spec says, unless its status tells that the spec
// still waits to be granted. Then its status tells as well what its containers have.
func initialAllocation(pod *corev1.Pod) *corev1.Pod {
	if !isConditionTrue(pod, corev1.PodResizePending) {
		return pod
	}
	out := pod.DeepCopy()
	restore := func(containers []corev1.Container, statuses []corev1.ContainerStatus) {
		for i := range containers {
			for _, s := range statuses {
				if s.Name != containers[i].Name || s.Resources == nil {
					continue
				}
				claims := containers[i].Resources.Claims
				containers[i].Resources = *s.Resources.DeepCopy()
				containers[i].Resources.Claims = claims
			}
		}
	}
	restore(out.Spec.Containers, pod.Status.ContainerStatuses)
	restore(out.Spec.InitContainers, pod.Status.InitContainerStatuses)
	return out
}

// isResizeDeferred reports whether the Pod's status tells that it waits for resources to become free.
func isResizeDeferred(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodResizePending && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonDeferred
	})
}

func isConditionTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// sameResources reports whether all containers of both versions of a Pod may use the same.
func sameResources(a, b *corev1.Pod) bool {
	same := func(x, y []corev1.Container) bool {
		for i := range x {
			if i < len(y) && !apiequality.Semantic.DeepEqual(x[i].Resources, y[i].Resources) {
				return false
			}
		}
		return true
	}
	return same(a.Spec.Containers, b.Spec.Containers) && same(a.Spec.InitContainers, b.Spec.InitContainers) &&
		apiequality.Semantic.DeepEqual(a.Spec.Resources, b.Spec.Resources)
}

// withResources is the Pod with the resources that another version of it has.
func withResources(pod, granted *corev1.Pod) *corev1.Pod {
	if granted == nil || sameResources(pod, granted) {
		return pod
	}
	out := pod.DeepCopy()
	for i := range granted.Spec.Containers {
		out.Spec.Containers[i].Resources = granted.Spec.Containers[i].Resources
	}
	for i := range granted.Spec.InitContainers {
		out.Spec.InitContainers[i].Resources = granted.Spec.InitContainers[i].Resources
	}
	out.Spec.Resources = granted.Spec.Resources
	return out
}

// allocate asks for the resources that the Pod's spec wants, if they are others than it has.
func (w *worker) allocate() {
	r := &w.resize
	if r.desired == nil || sameResources(r.desired, w.pod) {
		r.pending, r.trigger = nil, ""
		w.resizeDeferred.Store(false)
		return
	}
	why := w.m.admitResize(w, r.desired)
	trigger := cmp.Or(r.trigger, triggerPeriodic)
	r.trigger = ""
	if w.resizeDeferred.Swap(why != nil && why.Reason == corev1.PodReasonDeferred) && why == nil {
		w.m.deps.Metrics.ResizeAccepted(trigger)
	}
	if why != nil {
		if r.pending == nil || *r.pending != *why {
			w.eventWarning("", "Resize"+why.Reason, "%s", why.Message)
			if why.Reason == corev1.PodReasonInfeasible {
				w.m.deps.Metrics.ResizeInfeasible(why.Detail)
			}
		}
		r.pending = why
		return
	}
	shrinks := w.pod
	w.pod, r.pending, r.lastErr = r.desired, nil, ""
	w.m.deps.Allocations.Allocate(w.pod)
	r.cgroup, r.inProgress, r.startedAt = cgroupStale, true, w.m.deps.Clock.Now()
	w.retries.done(opResize)
	w.eventNormal("", "ResizeStarted", "Pod resize started: resources of generation %d are granted", w.pod.Generation)
	if shrinks != nil {
		w.m.retryDeferred(triggerResize)
	}
}

// actuate brings control group and running containers to what was granted: the group gets room, then the containers
// change, and when all of them have what they should, the group gets its limits. A container that takes its new
// resources by a restart is somebody else's to restart; the group waits for it.
func (w *worker) actuate(ctx context.Context, actions kuberuntime.Actions) {
	r := &w.resize
	todo := w.updatePendingContainers(actions)
	if r.cgroup == cgroupCurrent && len(todo) > 0 {
		r.cgroup, r.inProgress = cgroupStale, true
	}
	if r.cgroup == cgroupCurrent {
		if r.inProgress {
			r.inProgress = false
			w.recordResizeResult(true)
			w.eventNormal("", "ResizeCompleted", "Pod resize completed: generation %d", w.pod.Generation)
		}
		return
	}
	exact := len(actions.Kill) == 0 && len(actions.Start) == 0
	if w.ops[opResize] != nil || w.backingOff(opResize) || r.cgroup == cgroupUnlimited && len(todo) == 0 && !exact {
		return
	}
	w.startOp(ctx, opResize, op{}, w.actuateOp(todo, r.cgroup == cgroupStale, exact))
}

// updatePendingContainers notes which containers do not have what was granted, and returns those that have not been told to yet.
func (w *worker) updatePendingContainers(actions kuberuntime.Actions) []kuberuntime.Resize {
	r := &w.resize
	var todo []kuberuntime.Resize
	r.pendingContainers = map[string]bool{}
	for _, change := range actions.Resize {
		// A runtime may report other numbers than it was told; telling it again would change nothing.
		if asked := r.requested[change.Status.ID]; asked == nil || !proto.Equal(asked, change.Want) {
			todo = append(todo, change)
			r.pendingContainers[change.Container.Name] = true
		}
	}
	for _, kill := range actions.Kill {
		if kill.Reason == kuberuntime.KillResize {
			r.pendingContainers[kill.Status.Name] = true
		}
	}
	return todo
}

// actuateOp is one step towards what was granted.
func (w *worker) actuateOp(todo []kuberuntime.Resize, room, exact bool) func(ctx context.Context) func() {
	pod := w.pod
	return func(ctx context.Context) func() {
		reached, done, err := w.applyResources(ctx, pod, todo, room, exact)
		return func() {
			w.invalidate()
			r := &w.resize
			for _, change := range done {
				r.requested[change.Status.ID] = change.Want
				w.m.deps.Allocations.Actuate(pod, change.Container.Name)
			}
			if sameResources(pod, w.pod) {
				r.cgroup = reached
			} else {
				r.cgroup = cgroupStale // another change was granted meanwhile
			}
			r.lastErr = ""
			if err != nil {
				r.lastErr = errorMessage(err)
				w.recordResizeResult(false)
				w.eventWarning("", "ResizeError", "Pod resize error: %s", r.lastErr)
				w.failStep(ctx, opResize, err)
				return
			}
			w.retries.done(opResize)
		}
	}
}

// applyResources tells control group and runtime, and returns how far it came.
func (w *worker) applyResources(ctx context.Context, pod *corev1.Pod, todo []kuberuntime.Resize, room, exact bool) (
	reached cgroupState, done []kuberuntime.Resize, err error,
) {
	if room {
		if err := w.m.deps.Builder.ResizePod(ctx, pod, false); err != nil {
			return cgroupStale, nil, err
		}
	}
	for _, change := range todo {
		_, err := w.m.deps.Runtime.UpdateContainerResources(uncancelled(ctx), &runtimeapi.UpdateContainerResourcesRequest{
			ContainerId: change.Status.ID, Linux: change.Want,
		})
		if ignoreNotFound(err) != nil {
			return cgroupUnlimited, done, fmt.Errorf("change resources of container %q: %w", change.Container.Name, err)
		}
		done = append(done, change)
	}
	if !exact {
		return cgroupUnlimited, done, nil
	}
	if err := w.m.deps.Builder.ResizePod(ctx, pod, true); err != nil {
		return cgroupUnlimited, done, err
	}
	return cgroupCurrent, done, nil
}

// status is the change of resources as the status tells of it.
func (r *resize) status() *status.Resize {
	progress := r.cgroup != cgroupCurrent || len(r.pendingContainers) > 0
	if r.pending == nil && !progress {
		return nil
	}
	return &status.Resize{Pending: r.pending, InProgress: progress, Error: r.lastErr, PendingContainers: r.pendingContainers}
}

// admitResize asks whether a Pod that runs here may have the resources of another version of it, and if so takes note of
// that version at once, so that nobody else is given the same room.
func (m *Manager) admitResize(w *worker, desired *corev1.Pod) *status.Failure {
	m.mu.Lock()
	defer m.mu.Unlock()
	why := m.deps.Admitter.Resize(w.pod, desired, m.activePodsExcept(w))
	if why == nil {
		w.sharedPod.Store(desired)
		m.countBurstable(w, desired)
	}
	return why
}

// release records that a Pod uses nothing of the node any more.
func (m *Manager) release(w *worker) {
	w.released.Store(true)
	m.mu.Lock()
	m.countBurstable(w, nil)
	m.mu.Unlock()
	m.retryDeferred(triggerEnd)
}

// retryDeferred says that some of the node may be free again, and by what: Pods that wait for resources ask anew.
func (m *Manager) retryDeferred(trigger string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.workers {
		if w.resizeDeferred.Load() {
			w.post(func() { w.setResizeTrigger(trigger) })
		}
	}
}
