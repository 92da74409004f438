package podworker

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
)

// stopTimeoutMargin is what the runtime may take beyond a container's grace before the stop counts as failed.
const stopTimeoutMargin = 2 * time.Minute

// killPod stops all containers of the Pod within the grace, in seconds, and then its sandboxes. What the runtime tells
// of that is not read until noted is called, whatever is returned with it.
func (w *worker) killPod(ctx context.Context, pod *corev1.Pod, held *container.PodStatus, grace int64,
) (noted func(), err error) {
	plan := kuberuntime.TerminationPlan(pod, held.Running(), grace)
	if err := w.stopContainers(ctx, pod, plan, grace, firstIP(held.IPs)); err != nil {
		return func() {}, err
	}
	// How the containers ended is read at once; that the sandboxes end is no news.
	w.busy.Add(1)
	noted = func() { w.busy.Add(-1) }
	w.post(func() {
		if len(w.runtime.Running()) > 0 {
			w.invalidate()
		}
	})
	return noted, w.stopSandboxes(ctx, pod, held)
}

// uncancelled lets a call that has begun run to its end (which the runtime's client bounds), whatever happens to the op it
// belongs to. A runtime that is interrupted while it takes something down may leave a process behind, and one that
// is interrupted in a start leaves a container that counts as a failed one.
func uncancelled(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }
