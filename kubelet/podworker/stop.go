package podworker

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
)

// stopTimeoutMargin is the time beyond a container's grace period after which a stop counts as failed.
const stopTimeoutMargin = 2 * time.Minute

// killPod stops all containers of the Pod within the grace period, in seconds, and then its sandboxes. The worker does
// not read the runtime's state again until it calls noted, which killPod always returns.
func (w *worker) killPod(ctx context.Context, pod *corev1.Pod, held *container.PodStatus, grace int64,
) (noted func(), err error) {
	plan := kuberuntime.TerminationPlan(pod, held.Running(), grace)
	if err := w.stopContainers(ctx, pod, plan, grace, firstIP(w.m.podIPs(pod, held))); err != nil {
		return func() {}, err
	}
	// How the containers ended is read at once; the end of the sandboxes needs no read.
	w.busy.Add(1)
	noted = func() { w.busy.Add(-1) }
	w.post(func() {
		if len(w.runtime.Running()) > 0 {
			w.invalidate()
		}
	})
	return noted, w.stopSandboxes(ctx, pod, held)
}

// uncancelled returns a context for a call that must run to its end, which the runtime's client bounds, even if its
// operation is cancelled. An interrupted stop may leave a process behind, and an interrupted start leaves a container
// that counts as failed.
func uncancelled(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }
