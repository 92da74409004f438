package podworker

import (
	"context"
	"errors"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/cri"
	"github.com/berth-dev/berth/kubelet/pleg"
)

// touched says that we have changed the runtime ourselves: the next look reads it at once.
func (w *worker) touched() { w.changed, w.urgent = true, true }

// stale reports whether the runtime may hold something else than what was read.
func (w *worker) stale() bool { return w.changed || w.heard || len(w.made) > 0 }

// read brings the worker's view of the runtime up to date where it has to be, and reports whether it is there.
func (w *worker) read(ctx context.Context) bool {
	switch {
	case w.runtime == nil && w.pod != nil && !w.since.IsZero() && w.m.deps.Reader.HoldsNothing(w.uid):
		w.runtime, w.changed, w.urgent = container.FromCRI(w.uid, nil, nil), false, false
	case len(w.made) > 0:
		w.readMade(ctx)
	}
	if (w.changed || w.heard) && (w.urgent || w.busy.Load() == 0 && !w.allStopped()) {
		if w.waits("read") {
			return false
		}
		got, err := w.m.deps.Reader.Read(ctx, w.uid)
		if err != nil {
			w.unread(err)
			w.failed("read", err)
			return false
		}
		w.blind = false
		w.retries.done("read")
		w.runtime, w.changed, w.heard, w.urgent = got, false, false, false
		w.learn(ctx)
	}
	return w.runtime != nil
}

// unread tells once that the runtime does not say what it holds of the Pod. That it is away altogether concerns all Pods,
// and is told of the node.
func (w *worker) unread(err error) {
	if w.blind || w.pod == nil || cri.IsUnavailable(err) || errors.Is(err, context.Canceled) {
		return
	}
	w.blind = true
	if sandbox := (*pleg.SandboxError)(nil); errors.As(err, &sandbox) {
		w.warn("", "FailedPodSandBoxStatus", "Unable to get pod sandbox status: %s", message(sandbox.Err))
		return
	}
	w.warn("", "FailedSync", "error determining status: %s", message(err))
}

// readMade reads what we have made ourselves, and no more unless something else was told of meanwhile. A whole read
// follows if that does not do.
func (w *worker) readMade(ctx context.Context) {
	made := w.made
	w.made = nil
	if w.runtime == nil || w.changed {
		w.touched()
		return
	}
	for _, one := range made {
		got, complete, err := w.m.deps.Reader.ReadMade(ctx, w.runtime, one)
		if err != nil {
			w.log.Debug("what was made could not be read alone", "error", err)
			w.unread(err)
			w.touched()
			return
		}
		w.runtime, w.heard = got, !complete
	}
	if w.heard {
		w.touched()
		return
	}
	w.learn(ctx)
}

// allStopped reports whether the Pod is on its way out and everything of it has been stopped: nothing that the runtime
// could tell matters to what is left to do.
func (w *worker) allStopped() bool {
	return w.state == terminating && w.killed && w.runtime != nil && !w.lives()
}

// lives reports whether anything of the Pod ran when it was read.
func (w *worker) lives() bool {
	return len(w.runtime.Running()) > 0 || len(w.runtime.ReadySandboxes()) > 0
}

// sandboxesStopped notes that the runtime has stopped the sandboxes that the Pod was read with. It says so when it is
// done, so there is no need to ask.
func (w *worker) sandboxesStopped(held *container.PodStatus) {
	down := &container.PodStatus{UID: w.uid}
	for _, box := range held.Sandboxes {
		down.Sandboxes = append(down.Sandboxes, &runtimeapi.PodSandboxStatus{
			Id: box.Id, Metadata: box.Metadata, State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY,
			CreatedAt: box.CreatedAt, Network: box.Network, Linux: box.Linux, Labels: box.Labels,
			Annotations: box.Annotations, RuntimeHandler: box.RuntimeHandler,
		})
	}
	w.runtime = w.runtime.With(down)
}
