package podworker

import (
	"context"
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/timeline"
)

const (
	opStop    = "stop"
	opCleanup = "cleanup"
	opPurge   = "purge"
)

// orphanGrace is what the containers of a Pod nobody knows have to end, in seconds.
const orphanGrace = 1

// terminate goes on with the Pod's end: first all that was under way, then containers and sandboxes, then volumes.
func (w *worker) terminate(ctx context.Context) {
	if stop := w.ops[opStop]; stop != nil {
		if w.gracePeriod() < w.grace {
			stop.cancel() // the stop begins again with the shorter time
		}
		return
	}
	if len(w.ops) > 0 {
		if w.ops[opCleanup] == nil {
			w.touched() // what is being given up may still change the runtime
		}
		return
	}
	if !w.stopped {
		w.stop(ctx)
	}
	if w.stopped && !w.cleaned {
		w.clean(ctx)
	}
	if w.cleaned {
		w.state = terminated
		w.over.Store(true)
		w.m.freed(byEnd)
		w.finish(ctx)
	}
}

// stop begins to end containers and sandboxes, or notes that there is nothing left to be ended.
func (w *worker) stop(ctx context.Context) {
	over := !w.lives()
	// A sandbox that is not ready may still hold its network, until it was stopped once without an error.
	if over && (w.killed || len(w.runtime.Sandboxes) == 0) {
		w.stopped = true
		w.retries.done(opStop)
		w.stopSpan.End(nil)
		return
	}
	if w.waits(opStop) {
		return
	}
	pod, held, grace := w.pod, w.runtime, w.gracePeriod()
	w.grace = grace
	w.begin(ctx, opStop, op{}, func(ctx context.Context) func() {
		noted, err := w.killPod(ctx, pod, held, grace)
		canceled := ctx.Err() != nil
		return func() {
			noted()
			w.killed = err == nil
			if w.killed && len(w.runtime.Running()) == 0 {
				w.sandboxesStopped(held)
			} else {
				w.touched()
			}
			if err != nil && !canceled {
				w.warn("", "FailedKillPod", "error killing pod: %s", message(err))
				w.failed(opStop, err)
			}
		}
	})
}

// gracePeriod is the time the Pod has to end, in seconds.
func (w *worker) gracePeriod() int64 {
	if w.removed && w.pod.DeletionTimestamp == nil && w.pod.DeletionGracePeriodSeconds == nil {
		return orphanGrace // taken away by force
	}
	return kuberuntime.PodGracePeriod(w.pod, w.override)
}

// clean begins to take the Pod's volumes, cgroup and directories down.
func (w *worker) clean(ctx context.Context) {
	if w.waits(opCleanup) {
		return
	}
	ref := w.ref()
	w.begin(ctx, opCleanup, op{}, func(ctx context.Context) func() {
		span := w.m.deps.Timeline.Begin(ref, owner, timeline.StageUnmount, "")
		err := w.m.deps.Builder.ReleasePod(ctx, w.uid)
		if err == nil {
			err = w.m.deps.Volumes.Unmount(span.Context(ctx), w.uid)
		}
		span.End(err)
		return func() {
			if err != nil {
				w.fail(ctx, opCleanup, err)
				return
			}
			w.retries.done(opCleanup)
			w.cleaned, w.prepared = true, false
		}
	})
}

// finish does what is left for a Pod that has ended: its object is deleted if that was asked for, and when it is
// gone, so is the rest. It reports whether nothing is left.
func (w *worker) finish(ctx context.Context) (gone bool) {
	if !w.removed {
		if w.pod.DeletionTimestamp != nil {
			w.report() // the last word before the object goes
			w.m.deps.Statuses.Finish(w.pod)
		}
		return false
	}
	if w.purged {
		return true
	}
	if w.ops[opPurge] != nil || w.waits(opPurge) {
		return false
	}
	pod, held := w.pod, w.runtime
	w.begin(ctx, opPurge, op{}, func(ctx context.Context) func() {
		err := w.purge(ctx, pod, held)
		return func() {
			if err != nil {
				w.touched()
				w.failed(opPurge, err)
				return
			}
			w.purged = true
		}
	})
	return false
}

// purge removes from the runtime and from the disk what is held of a Pod that is gone.
func (w *worker) purge(ctx context.Context, pod *corev1.Pod, held *container.PodStatus) error {
	var errs []error
	for _, c := range held.Containers {
		errs = append(errs, w.removeContainer(ctx, c))
	}
	for _, box := range held.Sandboxes {
		errs = append(errs, w.removeSandbox(ctx, box.Id))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return w.m.deps.Builder.ForgetPod(ctx, pod)
}

// podFromRuntime makes as much of a Pod as the runtime knows, enough to end it in order.
func podFromRuntime(uid types.UID, held *container.PodStatus) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Name: held.Name, Namespace: held.Namespace}}
	names := map[string]bool{}
	for _, c := range held.Containers {
		names[c.Name] = true
		if pod.DeletionGracePeriodSeconds == nil {
			pod.DeletionGracePeriodSeconds = c.DeletionGracePeriod
		}
		if pod.Spec.TerminationGracePeriodSeconds == nil {
			pod.Spec.TerminationGracePeriodSeconds = c.PodGracePeriod
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name})
	}
	return pod
}
