package podworker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/timeline"
)

const (
	opStop      = "stop"
	opUnprepare = "unprepare"
	opCleanup   = "cleanup"
	opRemove    = "purge"
)

// orphanGrace is the grace period of an orphaned Pod's containers, in seconds.
const orphanGrace = 1

// terminate continues the Pod's termination: first it waits for the operations under way, then it stops containers and
// sandboxes, then drivers unprepare its ResourceClaims, then it unmounts the volumes.
func (w *worker) terminate(ctx context.Context) {
	if stop := w.ops[opStop]; stop != nil {
		if w.gracePeriod() < w.stopGrace {
			stop.cancel() // the stop starts again with the shorter grace period
		}
		return
	}
	if len(w.ops) > 0 {
		if w.ops[opUnprepare] == nil && w.ops[opCleanup] == nil {
			w.invalidate() // operations that are being cancelled may still change the runtime
		}
		return
	}
	if !w.stopped {
		w.stopPod(ctx)
	}
	switch {
	case !w.stopped || w.cleanedUp:
	case w.claimsPrepared():
		w.unprepare(ctx)
	default:
		w.cleanup(ctx)
	}
	if w.cleanedUp {
		w.state = terminated
		w.m.release(w)
		w.finish(ctx)
	}
}

// stopPod starts to stop containers and sandboxes, or records that nothing is left to stop.
func (w *worker) stopPod(ctx context.Context) {
	over := !w.anyRunning()
	// A sandbox that is not ready may still have its network until a stop has succeeded.
	if over && (w.podKilled || len(w.runtime.Sandboxes) == 0) {
		w.stopped = true
		w.notifyKilled(nil)
		w.retries.done(opStop)
		w.stopSpan.End(nil)
		return
	}
	if w.backingOff(opStop) {
		return
	}
	pod, held, grace := w.pod, w.runtime, w.gracePeriod()
	w.stopGrace = grace
	w.startOp(ctx, opStop, op{}, func(ctx context.Context) func() {
		noted, err := w.killPod(ctx, pod, held, grace)
		canceled := ctx.Err() != nil
		return func() {
			noted()
			w.podKilled = err == nil
			if w.podKilled && len(w.runtime.Running()) == 0 {
				w.markSandboxesStopped(held)
			} else {
				w.invalidate()
			}
			if err != nil && !canceled {
				w.eventWarning("", "FailedKillPod", "error killing pod: %s", errorMessage(err))
				w.recordFailure(opStop, err)
				w.notifyKilled(fmt.Errorf("stop Pod %s/%s: %w", pod.Namespace, pod.Name, err))
			}
		}
	})
}

// gracePeriod returns the Pod's grace period, in seconds.
func (w *worker) gracePeriod() int64 {
	if w.removed && w.pod.DeletionTimestamp == nil && w.pod.DeletionGracePeriodSeconds == nil {
		return orphanGrace // removed by force
	}
	return kuberuntime.PodGracePeriod(w.pod, w.graceOverride)
}

// claimsPrepared reports whether drivers may have ResourceClaims of the Pod prepared.
func (w *worker) claimsPrepared() bool { return !w.unprepared && podutil.HasClaims(w.pod) }

// unprepare starts to have drivers unprepare the Pod's ResourceClaims.
func (w *worker) unprepare(ctx context.Context) {
	if w.backingOff(opUnprepare) {
		return
	}
	w.startOp(ctx, opUnprepare, op{}, func(ctx context.Context) func() {
		err := w.m.deps.Builder.UnprepareResources(ctx, w.uid)
		return func() {
			if err != nil {
				w.eventWarning("", "FailedUnprepareDynamicResources", "Failed to unprepare dynamic resources: %s", errorMessage(err))
				w.failStep(ctx, opUnprepare, err)
				return
			}
			w.retries.done(opUnprepare)
			w.unprepared = true
		}
	})
}

// cleanup starts to remove the Pod's volumes, cgroup and directories.
func (w *worker) cleanup(ctx context.Context) {
	if w.backingOff(opCleanup) {
		return
	}
	ref := w.timelineRef()
	w.startOp(ctx, opCleanup, op{}, func(ctx context.Context) func() {
		span := w.m.deps.Timeline.Begin(ref, owner, timeline.StageUnmount, "")
		err := w.m.deps.Builder.ReleasePod(ctx, w.uid)
		if err == nil {
			err = w.m.deps.Volumes.Unmount(span.Context(ctx), w.uid)
		}
		span.End(err)
		return func() {
			if err != nil {
				w.failStep(ctx, opCleanup, err)
				return
			}
			w.retries.done(opCleanup)
			w.cleanedUp, w.volumesMounted = true, false
			w.notifyReleased()
		}
	})
}

// finish completes a Pod that has ended: it deletes the API object if its deletion was requested, and removes what is
// left when the object is gone. It reports whether nothing is left.
func (w *worker) finish(ctx context.Context) (gone bool) {
	if !w.removed {
		w.discardContainers(ctx)
		if w.pod.DeletionTimestamp != nil {
			w.report() // the last status before the object is deleted
			w.m.deps.Statuses.Finish(w.pod)
		}
		return false
	}
	if w.purged {
		return true
	}
	if w.ops[opRemove] != nil || w.backingOff(opRemove) {
		return false
	}
	pod, held := w.pod, w.runtime
	for _, c := range held.Containers {
		w.attempts[c.Name] = max(w.attempts[c.Name], c.Attempt)
	}
	w.startOp(ctx, opRemove, op{}, func(ctx context.Context) func() {
		err := w.purge(ctx, pod, held)
		return func() {
			if err != nil {
				w.invalidate()
				w.recordFailure(opRemove, err)
				return
			}
			w.purged = true
		}
	})
	return false
}

// purge removes the containers, sandboxes and files of a Pod that is gone.
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

// podFromRuntime returns a Pod with what the runtime knows of it, enough to stop it in order.
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
