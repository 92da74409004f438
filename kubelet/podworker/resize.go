package podworker

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/status"
)

const opResize = "resize"

// cgroupState compares the limits of the Pod's cgroup with the allocated resources.
type cgroupState int

const (
	cgroupCurrent   cgroupState = iota // the allocated limits, as far as is known
	cgroupStale                        // may be too small for the allocated resources
	cgroupUnlimited                    // without limits, while the containers' limits change
)

// resize is the state of a change of the Pod's resources. desired is what the spec requests; the worker's pod, from
// which all decisions are made, has the allocated resources.
type resize struct {
	desired *corev1.Pod
	pending *status.Failure
	// generation is that of the spec for which pending was reported.
	generation int64
	cgroup     cgroupState
	// requested are the resources last set on a running container, by its id.
	requested map[string]*runtimeapi.LinuxContainerResources
	// pinned are the CPUs that this process last set on a running container, by its id; none if it does not know them.
	pinned map[string]string
	// sandbox are the resources last set on the sandbox sandboxID; nil if they are not known.
	sandbox           *runtimeapi.LinuxContainerResources
	sandboxID         string
	pendingContainers map[string]bool // names of containers without the allocated resources
	lastErr           string
	inProgress        bool // a change is under way, and its end is reported
	startedAt         time.Time
	deferred          bool // the Manager has a request of this Pod that waits for resources of the node
	// trigger is the reason that the worker itself knows to try a deferred resize again; empty for none.
	trigger string
}

// Reasons for which a deferred resize is tried again, as upstream names them.
const (
	triggerUpdate   = "pod_updated" // of the Pod itself
	triggerStart    = "pods_added"  // of the kubelet
	triggerRemoval  = "pods_removed"
	triggerEnd      = "pod_terminated"
	triggerResize   = "pod_resized"    // of another Pod
	triggerPeriodic = "periodic_retry" // a sync for another reason
)

// updatePod sets a new version of the Pod from the source. Its allocated resources stay.
func (w *worker) updatePod(pod *corev1.Pod) {
	w.recordResizeRequest(w.resize.desired, pod)
	for c := range podutil.Containers(&pod.Spec) {
		if old, _ := podutil.FindContainer(&w.pod.Spec, c.Name); old != nil && old.Image != c.Image {
			delete(w.retries, opImage+c.Name) // it was the other image that could not be pulled
		}
	}
	w.resize.desired, w.updated = pod, true
	w.pod = withResources(pod, w.pod)
}

// setResizeTrigger records why a deferred resize is tried again.
func (w *worker) setResizeTrigger(trigger string) {
	w.resize.trigger = cmp.Or(w.resize.trigger, trigger)
}

// initialAllocation returns the Pod with the resources that an earlier process allocated, where no checkpoint has them:
// those of the spec, or those of the status if the status says that a resize is pending.
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
	if own, effective := out.Spec.Resources, pod.Status.Resources; own != nil && effective != nil {
		restoreList(own.Requests, effective.Requests)
		restoreList(own.Limits, effective.Limits)
	}
	return out
}

// restoreList replaces amounts by those of the status, which has more names: sums where the Pod as a whole sets none.
func restoreList(own, effective corev1.ResourceList) {
	for name := range own {
		if amount, ok := effective[name]; ok {
			own[name] = amount
		}
	}
}

// isResizeDeferred reports whether the Pod's status says that its resize waits for resources.
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

// sameResources reports whether the containers of both versions of a Pod have the same resources.
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

// withResources returns the Pod with the resources of another version of it.
func withResources(pod, granted *corev1.Pod) *corev1.Pod {
	if granted == nil || sameResources(pod, granted) {
		return pod
	}
	out := pod.DeepCopy()
	for c := range podutil.Containers(&out.Spec) { // by name: the manifest of a static Pod with a UID of its own may change all else
		if had, kind := podutil.FindContainer(&granted.Spec, c.Name); had != nil && kind != podutil.Ephemeral {
			c.Resources = had.Resources
		}
	}
	out.Spec.Resources = granted.Spec.Resources
	return out
}

// allocate allocates the resources of the Pod's spec, if they differ from the allocated ones and the node has them.
func (w *worker) allocate() {
	r := &w.resize
	if r.desired == nil || sameResources(r.desired, w.pod) {
		r.pending, r.trigger = nil, ""
		w.withdrawResize()
		return
	}
	why, trigger := w.m.admitResize(w, r.desired)
	if r.deferred && why == nil {
		w.m.deps.Metrics.ResizeAccepted(cmp.Or(r.trigger, trigger, triggerPeriodic))
	}
	r.trigger = ""
	r.deferred = why != nil && why.Reason == corev1.PodReasonDeferred
	if why != nil {
		w.reportPendingResize(why)
		return
	}
	w.pod, r.pending, r.lastErr = r.desired, nil, ""
	w.m.deps.Allocations.Allocate(w.pod)
	r.cgroup, r.inProgress, r.startedAt = cgroupStale, true, w.m.deps.Clock.Now()
	w.retries.done(opResize)
	w.eventNormal("", "ResizeStarted", "%s", resizeMessage("Pod resize started", w.pod, ""))
	w.m.retryDeferred(triggerResize) // it may have less than before
}

// withdrawResize removes the request for resources that waits in the Manager.
func (w *worker) withdrawResize() {
	if w.resize.deferred {
		w.resize.deferred = false
		w.m.withdrawResize(w)
	}
}

// actuate applies the allocated resources: first the Pod's cgroup loses its limits, then the containers change, and when
// all have their resources, the cgroup gets its limits. A container that takes its resources by a restart is restarted
// elsewhere; the cgroup waits for it.
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
			w.eventNormal("", "ResizeCompleted", "%s", resizeMessage("Pod resize completed", w.pod, ""))
		}
		return
	}
	limit := len(actions.Kill) == 0 && len(actions.Start) == 0
	if w.ops[opResize] != nil || w.backingOff(opResize) || r.cgroup == cgroupUnlimited && len(todo) == 0 && !limit {
		return
	}
	w.startOp(ctx, opResize, op{}, w.actuateOp(todo, r.cgroup, limit))
}

// updatePendingContainers records which containers do not have the allocated resources, and returns the changes that the
// runtime was not asked for yet.
func (w *worker) updatePendingContainers(actions kuberuntime.Actions) []kuberuntime.Resize {
	r := &w.resize
	var todo []kuberuntime.Resize
	r.pendingContainers = map[string]bool{}
	for _, change := range actions.Resize {
		// A runtime may report other numbers than were set; setting them again would change nothing.
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

// actuateOp is one step towards the allocated resources.
func (w *worker) actuateOp(todo []kuberuntime.Resize, from cgroupState, limit bool) func(ctx context.Context) func() {
	step := &actuation{
		deps: &w.m.deps, pod: w.pod, todo: todo, unlimit: from == cgroupStale, limit: limit, reached: from,
	}
	if len(w.runtime.Sandboxes) > 0 {
		step.sandboxID = w.runtime.Sandboxes[0].Id
		step.sandbox = w.sandboxResources(step.sandboxID)
	}
	return func(ctx context.Context) func() {
		err := w.checkMemory(ctx, step.pod, step.sandboxID, todo)
		if err == nil {
			err = step.run(ctx)
		}
		return func() {
			w.invalidate()
			w.actuated(ctx, step, err)
		}
	}
}

// actuated records how far a step has come.
func (w *worker) actuated(ctx context.Context, step *actuation, err error) {
	r := &w.resize
	for _, change := range step.done {
		r.requested[change.Status.ID] = change.Want
		w.m.deps.Allocations.Actuate(step.pod, change.Container.Name)
	}
	r.sandbox, r.sandboxID = step.sandbox, step.sandboxID
	r.cgroup = step.reached
	if !sameResources(step.pod, w.pod) {
		r.cgroup = cgroupStale // another change was allocated meanwhile
	}
	if r.cgroup == cgroupCurrent {
		w.m.deps.Allocations.ActuatePod(step.pod)
	}
	if err != nil && ctx.Err() != nil {
		return // the Pod ends; the step was canceled
	}
	if err != nil {
		w.recordResizeResult(false)
		if message := errorMessage(err); message != r.lastErr {
			r.lastErr = message
			w.eventWarning("", "ResizeError", "%s", resizeMessage("Pod resize error", w.pod, message))
		}
		w.recordFailure(opResize, err)
		return
	}
	r.lastErr = ""
	w.retries.done(opResize)
}

// status returns the resize for status.Compute.
func (r *resize) status() *status.Resize {
	progress := r.cgroup != cgroupCurrent || len(r.pendingContainers) > 0
	if r.pending == nil && !progress {
		return nil
	}
	return &status.Resize{
		Pending: r.pending, InProgress: progress, Error: r.lastErr, PendingContainers: r.pendingContainers,
		PodPending: r.cgroup != cgroupCurrent,
	}
}

// vacate makes the resources of a Pod free for others: its containers have ended for good. Sandbox and volumes may still be there.
func (m *Manager) vacate(w *worker) {
	m.deps.OnPodReleased(w.uid) // before others count on what it had
	m.mu.Lock()
	defer m.mu.Unlock()
	w.vacated.Store(true)
	m.countRequests(w, nil)
	m.evaluateResizes(nil, triggerEnd)
}

// release records that a Pod does not use anything of the node any more.
func (m *Manager) release(w *worker) {
	m.vacate(w)
	w.released.Store(true)
}
