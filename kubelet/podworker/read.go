package podworker

import (
	"context"
	"errors"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/cri"
	"github.com/berth-dev/berth/kubelet/pleg"
)

// invalidate says that the worker has changed the Pod's state in the runtime: the next sync reads it at once.
func (w *worker) invalidate() { w.dirty, w.forceRead = true, true }

// needsRead reports whether the state in the runtime may differ from what was read.
func (w *worker) needsRead() bool { return w.dirty || w.eventPending || len(w.startedSinceRead) > 0 }

// read reads the Pod's state in the runtime if it may have changed, and reports whether the state is known.
func (w *worker) read(ctx context.Context) bool {
	switch {
	case w.runtime == nil && w.pod != nil && !w.firstSeen.IsZero() && w.m.deps.Reader.KnownEmpty(w.uid):
		w.runtime, w.dirty, w.forceRead = container.FromCRI(w.uid, nil, nil), false, false
	case len(w.startedSinceRead) > 0:
		w.readStarted(ctx)
	}
	if (w.dirty || w.eventPending) && (w.forceRead || w.busy.Load() == 0 && !w.allStopped()) {
		if w.backingOff("read") {
			return false
		}
		got, err := w.m.deps.Reader.Read(ctx, w.uid)
		if err != nil {
			w.reportReadError(err)
			w.recordFailure("read", err)
			return false
		}
		w.readErrorReported = false
		w.retries.done("read")
		w.runtime, w.dirty, w.eventPending, w.forceRead = got, false, false, false
		w.observe(ctx)
	}
	return w.runtime != nil
}

// reportReadError sends one event when the Pod's state cannot be read. A runtime that cannot be reached concerns all
// Pods and is reported on the Node.
func (w *worker) reportReadError(err error) {
	if w.readErrorReported || w.pod == nil || cri.IsUnavailable(err) || errors.Is(err, context.Canceled) {
		return
	}
	w.readErrorReported = true
	if sandbox := (*pleg.SandboxError)(nil); errors.As(err, &sandbox) {
		w.eventWarning("", "FailedPodSandBoxStatus", "Unable to get pod sandbox status: %s", errorMessage(sandbox.Err))
		return
	}
	w.eventWarning("", "FailedSync", "error determining status: %s", errorMessage(err))
}

// readStarted reads only what the worker itself has started. A full read follows if events have reported anything else.
func (w *worker) readStarted(ctx context.Context) {
	made := w.startedSinceRead
	w.startedSinceRead = nil
	if w.runtime == nil || w.dirty {
		w.invalidate()
		return
	}
	for _, one := range made {
		got, complete, err := w.m.deps.Reader.ReadStarted(ctx, w.runtime, one)
		if err != nil {
			w.logger.Debug("failed to read started containers; reading the whole Pod", "error", err)
			w.reportReadError(err)
			w.invalidate()
			return
		}
		w.runtime, w.eventPending = got, !complete
	}
	if w.eventPending {
		w.invalidate()
		return
	}
	w.observe(ctx)
}

// allStopped reports whether the Pod terminates and all of it has stopped, so that its state in the runtime does not
// matter any more.
func (w *worker) allStopped() bool {
	return w.state == terminating && w.podKilled && w.runtime != nil && !w.anyRunning()
}

// anyRunning reports whether a container or sandbox of the Pod ran when it was last read.
func (w *worker) anyRunning() bool {
	return len(w.runtime.Running()) > 0 || len(w.runtime.ReadySandboxes()) > 0
}

// markSandboxesStopped records that the runtime has stopped the Pod's sandboxes. StopPodSandbox returns when that is
// done, so no read is needed.
func (w *worker) markSandboxesStopped(held *container.PodStatus) {
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
